"""List the runs: trained versions of each member, with their difference from the parameters, scores, time and size."""

import numpy as np

from competition.artifacts.dependencies import fold_model_path
from competition.artifacts.manifest import changed_keys, files_intact, read_manifest
from competition.artifacts.run_usage import (
    honest_scores,
    runs_in_use,
    seconds_of_training,
    size_of,
    submissions_by_run,
)
from competition.artifacts.runs import Run, stored_runs
from competition.artifacts.scores import held_out_score
from competition.data.prepared import Prepared
from competition.preflight.planning import duration
from competition.report.console_table import table_lines
from pipelines.cli import main
from pipelines.runner import Job

COLUMNS = ("run", "difference", "folds", "held-out", "honest", "training", "MB", "submissions")
MOST_DIFFERENCES = 3


def run(job: Job) -> None:
    """members/*/*/, blend/, submissions/ledger.jsonl -> a table on the screen"""
    prepared = job.prepared()
    runs = stored_runs(job.work, job.options.member)
    if not runs:
        job.echo("runs: none yet; `make train` makes one for each member")
        return
    current = runs_in_use(job.work, prepared, job.params, job.overrides)
    folds, competition = job.params.prepare.folds, job.params.competition.name
    honest = honest_scores(job.work, prepared.competition.metric)
    used = submissions_by_run(job.work, job.submissions, competition, runs, folds)
    rows = []
    for one in sorted(runs, key=lambda one: one.name):
        done = [fold for fold in range(folds) if is_complete(one, fold)]
        scores = [held_out_score(prepared, one, fold) for fold in done]
        score = honest.get(one.digest)
        files = [f"{row.entry.file[:8]}{'' if row.state == 'made' else f' ({row.state})'}" for row in used[one.digest]]
        rows.append(
            [
                f"{one.label}{' *' if one.digest in current else ''}",
                difference(job, one, prepared),
                f"{len(done)}/{folds}",
                f"{np.mean(scores):.4f}" if scores else "-",
                f"{score['score']:.4f} ± {score['standard_error']:.4f}" if score else "-",
                duration(seconds_of_training(one, folds)),
                f"{size_of(one.folder) / 1e6:.1f}",
                ", ".join(dict.fromkeys(files)) or "-",
            ]
        )
    for line in table_lines(COLUMNS, rows, indent=0):
        job.echo(line)
    job.echo(
        f"runs: * = used with the current parameters; held-out: mean {prepared.competition.metric} of the fold models; honest: on "
        "rows that chose nothing, where a blend computed it; `make adopt RUN=...` writes a run's parameters into the file"
    )


def difference(job: Job, one: Run, prepared: Prepared) -> str:
    """What a run's parameters, data and code differ in from the current ones of its member."""
    if one.name not in job.params.members:
        return "its member is not in the parameters"
    runs = job.runs_of(prepared, one.name)
    if one.digest in {each.digest for each in runs}:
        return "-"
    names = {
        "data": "other data",
        "code": "other code",
        "teachers": "other teachers",
        "weights": "other initial weights",
    }
    changes: dict[str, None] = {}
    for change in changed_keys(runs[0].depends, one.depends):
        key = change.partition(":")[0]
        changes[names.get(key.partition(".")[0], change.removeprefix("member.train.").removeprefix("member."))] = None
    more = f" ... ({len(changes)})" if len(changes) > MOST_DIFFERENCES else ""
    return "; ".join([*changes][:MOST_DIFFERENCES]) + more


def is_complete(one: Run, fold: int) -> bool:
    path = fold_model_path(one, fold)
    manifest = read_manifest(path)
    return manifest is not None and files_intact(path, manifest)


if __name__ == "__main__":
    main("runs")
