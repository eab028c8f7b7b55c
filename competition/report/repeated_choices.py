"""Count repeated choices on the same rows, and bound the optimism of the best result.

Counted from the ledger: blends scored on the same training rows, submissions with a public score. The best of n scores whose noise
has the standard deviation s is too good by at most s * sqrt(2 log n) on average, however their noise is correlated.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from typing import Any

from competition.config.errors import counted
from competition.config.params import Params
from competition.submission.ledger import Entry, Ledger, entry_of_blend, of_competition, read, submission_states


def choices_lines(submissions: Path, params: Params, result: Mapping[str, Any] | None = None) -> list[str]:
    """Lines for the terminal on repeated choices on the rows of a blend; those of the newest submission without one.

    result: of the blend's manifest.
    """
    ledger = of_competition(read(submissions / "ledger.jsonl"), params.competition.name, params.competition.slug)
    current = next(reversed(ledger.entries), None)
    if result is not None:
        current = entry_of_blend(ledger.entries, result)
    return [] if current is None else repeated_choices(ledger, current, params.kaggle.public_share)


def repeated_choices(ledger: Ledger, current: Entry, public_share: float) -> list[str]:
    """One line for each kind of score by which one of several was chosen.

    ledger: of this competition.  current: the submission. Blends of one submission that differ in their honest scores are counted each;
    one that was made again is counted once.
    """
    same = [entry for entry in ledger.entries if on_same_rows(entry, current)]
    blends = {(entry.digest, entry.honest_score) for entry in same}
    of_metric = tuple(entry for entry in ledger.entries if entry.metric == current.metric)
    scored = [row for row in submission_states(replace(ledger, entries=of_metric)) if row.public_score is not None]
    # Of the noisiest blend, so that the bound holds whichever is the best. A doubted one bounds nothing.
    error = 0.0 if current.is_doubted else max((entry.standard_error or 0.0 for entry in (*same, current)), default=0.0)
    public_error = error * sqrt(current.oof_rows / max(1, round(current.test_rows * public_share)))
    lines = []
    of_blends = f"different blends on these {counted(current.oof_rows, 'row')}; the best of their honest scores"
    for count, noise, text in (
        (len(blends), error, of_blends),
        (len(scored), public_error, "public scores; the best of them"),
    ):
        if count > 1 and noise > 0:
            bound = noise * sqrt(2 * log(count))
            lines.append(f"repeated choices: {count} {text} is expected to be at most {bound:.4f} too good")
    return lines


def on_same_rows(entry: Entry, current: Entry) -> bool:
    """Return True if two entries are scored by the same metric on the same rows, honestly, in folds that keep the same rows together.

    The digest is of the rows that the blend was fitted on, of which those that chose hyperparameters have no score.
    """
    if entry.is_doubted or (entry.metric, entry.oof_rows) != (current.metric, current.oof_rows):
        return False  # a doubted score is none to choose by
    if entry.grouping and current.grouping and entry.grouping != current.grouping:
        return False  # photos of one object in several folds make a score optimistic
    return entry.oof_digest == current.oof_digest or not (entry.oof_digest and current.oof_digest)
