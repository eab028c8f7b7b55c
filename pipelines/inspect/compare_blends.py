"""Compare two blends on the same rows: paired honest difference with its interval, and the changed rows."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.chain import Chain
from competition.ensemble.compare import Label, changed_rows, seed_noise_of_difference
from competition.ensemble.external_check import doubts_of, joined_notes
from competition.files.manifest import atomic_write
from competition.report.stored_blends import blend_text, blends_of, shared_rows, stored_output
from competition.report.terminal import gain, seeds_line
from competition.submission.submission_csv import for_spreadsheet
from competition.workspace.scores import seed_spreads
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path


def run(job: Job) -> None:
    """blends/<A>, blends/<B> -> compare_blends.csv: id, label, before, after"""
    prepared = job.prepared
    a, b = (blend_named(job, letter, name) for letter, name in (("A", job.options.a), ("B", job.options.b)))
    classes, metric = prepared.competition.classes, prepared.metric
    rows = shared_rows([a, b], prepared)
    before, after = (stored_output(folder, rows.ids, metric, len(classes)) for folder in (a, b))
    honest = job.params.honest
    evaluation = Evaluation(metric, len(classes), honest.resamples, honest.seed)
    spreads, notes = seed_spreads(job.workspace)
    old_weights, new_weights = (Chain.load(folder / "chain.json").blend.shares for folder in (a, b))
    # Members of both blends with different fold models, so that the effect of their seeds does not cancel.
    scores = [json.loads((folder / "scores.json").read_text(encoding="utf-8")) for folder in (a, b)]
    models_a, models_b = (each.get("models", {}) for each in scores)
    doubts = [
        f"{folder.name}: {note}" for folder, each in zip((a, b), scores) for note in joined_notes(each.get("notes", ()))
    ]
    retrained = sorted(name for name in models_a.keys() & models_b.keys() if models_a[name] != models_b[name])
    seed_noise = seed_noise_of_difference(old_weights, new_weights, spreads, retrained)
    difference = replace(paired(rows.labels, before, after, evaluation), seeds=seed_noise)
    job.echo(
        f"compare-blends: {b.name} over {a.name}, {metric.name} on {counted(len(rows.ids), 'out-of-fold row')}, both fitted without "
        "the fold of each row"
    )
    groupings = [each.get("grouping", "") for each in scores]
    are_alike = groupings[0] == groupings[1] or "" in groupings
    doubted = " and ".join(folder.name for folder, each in zip((a, b), scores) if doubts_of(each))
    job.echo(
        f"  {gain(difference)}; not counting other seeds, 95 % interval: {difference.low:+.4f} to {difference.high:+.4f}"
        + (f"; DOUBTED, because the score of {doubted} is, see below" if doubted else "")
        + ("" if are_alike else "; NOT COMPARABLE: one of the scores is optimistic, see below"),
        *seeds_line(spreads, sorted({*old_weights, *new_weights})),
        *(f"  {note}" for note in (*doubts, *rows.notes(), *notes)),
    )
    if not are_alike:
        job.echo(
            f"  the folds of {a.name} keep rows together by {groupings[0]}, those of {b.name} by {groupings[1]}: where photos of "
            "one object are in several folds, the score is too good"
        )
    if retrained:
        job.echo(f"  members with different fold models: {', '.join(retrained)}")
    label_of = dict(zip(rows.ids, rows.labels))
    changes = []
    for row_id, old, new in changed_rows(rows.ids, before, after, metric.target):
        label = label_of[row_id]
        texts = (text(one, classes) for one in (label, old, new))
        changes.append((row_id, *texts, np.array_equal(old, label), np.array_equal(new, label)))
    table = pd.DataFrame(changes, columns=["id", "label", "before", "after", "was_right", "is_right"])
    with atomic_write(job.path("compare_blends.csv")) as temporary:
        for_spreadsheet(table).to_csv(temporary, index=False, lineterminator="\n")
    if metric.target == "regression":
        job.echo("  a regression has no right and wrong rows: none is listed")
        return
    corrected = int((~table["was_right"] & table["is_right"]).sum())
    corrupted = int((table["was_right"] & ~table["is_right"]).sum())
    job.echo(
        f"  {counted(len(table), 'row')} changed: {corrected} corrected, {corrupted} corrupted, "
        f"{len(table) - corrected - corrupted} wrong before and after: "
        f"{display_path(job.path('compare_blends.csv'))}"
    )


def text(label: Label, classes: Sequence[str]) -> str:
    """A class number, or the (C,) bool labels of a multi-label row, as text."""
    if isinstance(label, np.ndarray):
        return " ".join(name for name, chosen in zip(classes, label) if chosen)
    return classes[label]


def blend_named(job: Job, letter: str, name: str) -> Path:
    """The folder of the only stored blend whose name starts with `name`.  letter: A or B."""
    folders = blends_of(job.path("blends"))
    matches = [folder for folder in folders if name and folder.name.startswith(Path(name).stem)]
    # The blends of one submission: ecbba8980f68 and ecbba8980f68-1a2b3c.
    matches = [folder for folder in matches if folder.name == Path(name).stem] or matches
    if len(matches) != 1:
        problem = f"{letter}={name} matches {counted(len(matches), 'blend')}" if name else f"{letter}= not given"
        listed = " and ".join(map(blend_text, matches)) or ", ".join(folder.name for folder in folders)
        raise UserError(
            f"{problem}; expected make compare-blends A=... B=... with the first digits, or all, of one blend each; there are "
            f"{listed or f'none in {display_path(job.path())}, every `make predict` stores one'}"
        )
    return matches[0]
