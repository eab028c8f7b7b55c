"""List the runs: trained versions of each member, with their difference from the parameters, scores, time and size."""

import re
from collections.abc import Sequence

import numpy as np

from competition.config.errors import UserError
from competition.files.manifest import files_intact, read_manifest
from competition.preflight.planning import duration
from competition.report.terminal import TUNED, TUNED_NOTE, with_error
from competition.workspace.current_blend import current_blend
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import (
    Run,
    changes_between,
    honest_scores,
    runs_in_use,
    runs_of,
    size_of,
    stored_runs,
    submissions_by_run,
)
from competition.workspace.scores import held_out_score, trivial_text
from pipelines.terminal.job import Job
from pipelines.terminal.output import table_lines

COLUMNS = ("run", "difference", "folds", "held-out", "honest", "training", "MB", "submissions")
FOLDS, INCOMPLETE = COLUMNS.index("folds"), " incomplete"
MOST_DIFFERENCES = 3
NAMES = {
    "data": "other data",
    "training_version": "other version of training",
    "teachers": "other teachers",
    "weights": "other initial weights",
}


def run(job: Job) -> None:
    """members/*/*/, blend/, submissions/ledger.jsonl -> a table on the screen"""
    member = job.options.member
    known = {*job.params.members, *job.params.external, *(one.name for one in stored_runs(job.work))}
    if member and member not in known:
        raise UserError(f"MEMBER={member}: no such member; the members are {', '.join(sorted(known))}")
    runs = sorted(stored_runs(job.work, member), key=lambda one: one.name)
    external = [name for name in job.params.external if member in ("", name)]
    if runs:
        rows = run_rows(job, runs)
        job.echo(*table_lines(COLUMNS, rows, indent=0))
        job.echo(
            f"runs: * = used with the current parameters. held-out: mean {job.prepared.competition.metric} of the fold models; "
            f"{trivial_text(job.prepared)}. honest: of all rows together that chose nothing, where a blend computed it. {TUNED_NOTE} "
            "`make adopt RUN=...` writes a run's parameters into the file."
        )
        if any(INCOMPLETE in row[FOLDS] for row in rows):
            job.echo(
                "runs: incomplete = fold models are missing or being trained: `make train` trains those of the runs with *, `make prune` "
                "lists runs that nothing uses"
            )
    elif not external or any(member in ("", name) for name in job.params.members):
        job.echo("runs: none yet; `make train` makes one for each member")
    if external:
        job.echo(f"runs: trained elsewhere, without runs: {', '.join(external)}")


def run_rows(job: Job, runs: Sequence[Run]) -> list[list[str]]:
    """One row of COLUMNS for each of these stored runs.

    * marks those that the current parameters use, † a held-out score with rows that chose the run's hyperparameters.
    """
    workspace, folds, metric = job.workspace, job.params.prepare.folds, job.prepared.competition.metric
    current = runs_in_use(workspace)
    honest = honest_scores(workspace.folder, metric, current_blend(workspace))
    used = submissions_by_run(workspace, job.submissions, runs)
    rows = []
    for run in runs:
        manifests = {path: read_manifest(path) for path in (fold_manifest_path(run, fold) for fold in range(folds))}
        intact = [manifest is not None and files_intact(path, manifest) for path, manifest in manifests.items()]
        complete = [fold for fold in range(folds) if intact[fold]]
        scores = [held_out_score(workspace.prepared, run, fold) for fold in complete]
        score = honest.get(run.digest)
        files = [f"{row.entry.file[:8]}{'' if row.state == 'made' else f' ({row.state})'}" for row in used[run.label]]
        is_tuned = bool(set(complete) & set(run.depends["tuned_folds"]))
        rows.append(
            [
                f"{run.label}{' *' if run.label in current else ''}",
                difference_from_parameters(job, run),
                f"{len(complete)}/{folds}{'' if len(complete) == folds else INCOMPLETE}",
                f"{np.mean(scores):.4f}{TUNED * is_tuned}" if scores else "-",
                with_error(score["score"], score["standard_error"], metric) if score else "-",
                duration(sum(float(each.result.get("seconds", 0)) for each in manifests.values() if each)),
                f"{size_of(run.folder) / 1e6:.2f}",
                ", ".join(dict.fromkeys(files)) or "-",
            ]
        )
    return rows


def difference_from_parameters(job: Job, run: Run) -> str:
    """What a run depends on where the run of the parameters depends on something else: "epochs: 4 -> 8; other data"; "-" for equal ones."""
    if run.name not in job.params.members:
        return "its member is not in the parameters"
    of_member = runs_of(job.workspace, run.name)
    if run.digest in {one.digest for one in of_member}:
        return "-"
    differences = []
    for change in changes_between(of_member[0], run):
        stated = change.removeprefix("member.train.").removeprefix("member.")
        differences.append(NAMES.get(re.split("[.:]", change)[0], stated))
    differences = list(dict.fromkeys(differences))
    more = f" ... ({len(differences)})" if len(differences) > MOST_DIFFERENCES else ""
    return "; ".join(differences[:MOST_DIFFERENCES]) + more
