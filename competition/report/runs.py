"""Tables of the runs: what they differ in, folds, scores, time, size and submissions."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from competition.files.manifest import files_intact, read_manifest
from competition.preflight.planning import duration
from competition.report.page import Section, Table, Text
from competition.report.terminal import with_error
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
from competition.workspace.workspace import Workspace

COLUMNS = ("run", "difference", "folds", "held-out", "honest", "training", "MB", "submissions")
TITLE, SOURCES = "Runs", "members/<member>/<run>/run.json · make train, make runs"
TUNED_NOTE = "† rows that chose the run's hyperparameters are among them: optimistic."
NOTE = f"honest: of all rows together that chose nothing, where a blend computed it; held-out is a mean over folds. {TUNED_NOTE}"
FEATURES_NOTE = 'Training of a member with a head is without the features of its network, which "Time, memory and cost" of the report has.'
TUNED = " †"
MOST_DIFFERENCES = 3
NAMES = {
    "data": "other data",
    "training_version": "other version of training",
    "teachers": "other teachers",
    "weights": "other initial weights",
}


def run_rows(workspace: Workspace, submissions: Path, runs: Sequence[Run]) -> list[list[str]]:
    """One row of COLUMNS for each of these stored runs.

    * marks those that the current parameters use, † a held-out score with rows that chose the run's hyperparameters.
    """
    current = runs_in_use(workspace)
    folds = workspace.params.prepare.folds
    metric = workspace.prepared.competition.metric
    honest = honest_scores(workspace.folder, metric, current_blend(workspace))
    used = submissions_by_run(workspace, submissions, runs)
    rows = []
    for run in runs:
        manifests = {path: read_manifest(path) for path in (fold_manifest_path(run, fold) for fold in range(folds))}
        intact = [manifest is not None and files_intact(path, manifest) for path, manifest in manifests.items()]
        complete = [fold for fold in range(folds) if intact[fold]]
        scores = [held_out_score(workspace.prepared, run, fold) for fold in complete]
        score = honest.get(run.digest)
        files = [f"{row.entry.file[:8]}{'' if row.state == 'made' else f' ({row.state})'}" for row in used[run.label]]
        difference = "its member is not in the parameters"
        if run.name in workspace.params.members:
            of_member = runs_of(workspace, run.name)
            difference = "-" if run.digest in {one.digest for one in of_member} else changes(of_member[0], run)
        is_tuned = bool(set(complete) & set(run.depends["tuned_folds"]))
        rows.append(
            [
                f"{run.label}{' *' if run.label in current else ''}",
                difference,
                f"{len(complete)}/{folds}",
                f"{np.mean(scores):.4f}{TUNED * is_tuned}" if scores else "-",
                with_error(score["score"], score["standard_error"], metric) if score else "-",
                duration(sum(float(each.result.get("seconds", 0)) for each in manifests.values() if each)),
                f"{size_of(run.folder) / 1e6:.2f}",
                ", ".join(dict.fromkeys(files)) or "-",
            ]
        )
    return rows


def changes(before: Run, after: Run) -> str:
    """The first differences between what two runs depend on: "epochs: 4 -> 8; other code"."""
    differences = []
    for change in changes_between(before, after):
        stated = change.removeprefix("member.train.").removeprefix("member.")
        differences.append(NAMES.get(re.split("[.:]", change)[0], stated))
    differences = list(dict.fromkeys(differences))
    more = f" ... ({len(differences)})" if len(differences) > MOST_DIFFERENCES else ""
    return without_folder("; ".join(differences[:MOST_DIFFERENCES]) + more)


def without_folder(text: str) -> str:
    """The text with every absolute path cut to its last part: the page may be shown to others."""
    return re.sub(r"(?<![\w.])(?:/|[A-Za-z]:[\\/])[^\s,;]*[\\/]([^\s,;/\\]+)", r"\1", text)


def runs_section(workspace: Workspace, submissions: Path) -> Section | None:
    """All runs, the newest first, and what each changed from the run of its member before it.

    One sentence without runs; None if all members are external.
    """
    runs = stored_runs(workspace.folder)
    if not runs:
        text = "No run yet: `make train` makes one for each member, and a new one whenever its parameters change."
        return Section("runs", TITLE, SOURCES, [Text([text])]) if workspace.params.members else None
    rows, competition = run_rows(workspace, submissions, runs), workspace.prepared.competition
    previous: dict[str, Run] = {}
    table = []
    for run, row in zip(runs, rows, strict=True):
        before = previous.get(run.name)
        table.append(
            [row[0], run.created[:16].replace("T", " ") or "-", changes(before, run) if before else "first", *row[2:]]
        )
        previous[run.name] = run
    columns = ["run", "begun (UTC)", "changed since the member's run before it", *COLUMNS[2:]]
    features = f" {FEATURES_NOTE}" if any(run.member.head for run in runs) else ""
    note = (
        f"* = used with the current parameters. held-out: mean {competition.metric} of the fold models on all rows of their folds; "
        f"{trivial_text(workspace.prepared)}. "
        f"{NOTE} Runs of other data or folds are scored on other rows. `make adopt RUN=...` restores a run's parameters.{features}"
    )
    return Section("runs", TITLE, SOURCES, [Table(columns, table[::-1], 3, note)])
