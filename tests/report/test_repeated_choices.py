"""Stored blends of a few rows: which rows they share, how often choices were made on them, and what bounds the optimism of the best."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import competition, ledger_entry

from competition.config.errors import UserError
from competition.ensemble.metrics import METRICS
from competition.prepare.prepared import Prepared
from competition.report.repeated_choices import repeated_choices
from competition.report.stored_blends import shared_rows, stored_output
from competition.submission.ledger import Event, Ledger

ROWS, FOLDS, CLASSES = 400, 4, 3
IDS = np.array([f"i{n:03}" for n in range(ROWS)])
LABELS = np.random.default_rng(0).integers(0, CLASSES, ROWS)
ENTRY = ledger_entry(
    metric="accuracy", honest_score=0.8, standard_error=0.02, oof_rows=ROWS, test_rows=200, oof_digest="rows"
)


def prepared(ids: np.ndarray = IDS) -> Prepared:
    at = np.isin(IDS, ids)
    index = pd.DataFrame({"id": IDS[at], "label": LABELS[at], "part": "train", "fold": (np.arange(ROWS) % FOLDS)[at]})
    return Prepared(Path(), competition(("a", "b", "c")), index, "digest")


PREPARED = prepared()


def store_blend(folder: Path, seed: int, ids: np.ndarray = IDS, tuned: int = 0, **scores: object) -> Path:
    """Store a blend that is correct on 80 % of its rows, which are in another order than in the index.

    tuned: the first so many rows chose hyperparameters.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(ids))
    labels = LABELS[np.isin(IDS, ids)]
    answers = np.where(rng.random(len(ids)) < 0.8, labels, (labels + 1) % CLASSES)
    folder.mkdir(parents=True)
    table = pd.DataFrame({"id": ids, "label": answers, "scored": (np.arange(len(ids)) >= tuned).astype(int)})
    table.iloc[order].to_csv(folder / "honest_oof.csv", index=False)
    np.savez(folder / "honest_oof.npz", ids=ids[order], scores=np.eye(CLASSES, dtype=np.float32)[answers[order]])
    (folder / "scores.json").write_text(json.dumps({"metric": ENTRY.metric, "honest": ENTRY.honest_score} | scores))
    return folder


def ledger_of(count: int, public: tuple[float, ...] = (), **changes: dict[str, object]) -> Ledger:
    """A ledger of submissions d0, d1, ...  public: scores of the first ones.  changes: of single entries, by digest."""
    entries = [replace(ENTRY, digest=f"d{n}", file=f"b{n}.csv", **changes.get(f"d{n}", {})) for n in range(count)]
    return Ledger(tuple(entries), tuple(Event(f"d{n}", "scored", "1", score) for n, score in enumerate(public)), 0)


def test_rows_that_tuned_a_blend_or_were_removed_are_not_scored_and_other_data_are_an_error(tmp_path: Path) -> None:
    a, b = store_blend(tmp_path / "a", 1, tuned=50), store_blend(tmp_path / "b", 2, IDS[10:])
    rows = shared_rows([a, b], prepared(IDS[:-20]))
    assert rows.ids.tolist() == IDS[50:-20].tolist() and rows.labels.tolist() == LABELS[50:-20].tolist()
    assert (rows.unknown, rows.tuned) == (20, 40) and [note.split()[0] for note in rows.notes()] == ["20", "40"]
    stored = pd.read_csv(a / "honest_oof.csv").set_index("id")["label"]
    assert stored_output(a, rows.ids, METRICS["accuracy"], CLASSES).tolist() == stored.loc[rows.ids].tolist()
    c, d = store_blend(tmp_path / "c", 1), store_blend(tmp_path / "d", 2, optimistic=True)
    (note,) = shared_rows([c, d], PREPARED).notes()
    assert note.startswith("OPTIMISTIC: every fold chose hyperparameters of d")
    other = replace(PREPARED, index=PREPARED.index.assign(id=[f"x{n}" for n in range(ROWS)]))
    with pytest.raises(UserError, match=r"no training row can be used to compare c: .* 400 are not in the prepared"):
        shared_rows([c], other)
    with pytest.raises(UserError, match="c has other classes than the 2"):
        stored_output(c, IDS, METRICS["accuracy"], 2)


def test_blends_of_other_rows_or_with_a_doubt_are_not_counted_and_without_a_digest_the_size_counts() -> None:
    fewer, unnamed = {"oof_rows": ROWS - 50}, {"oof_digest": ""}  # 50 rows chose hyperparameters
    ledger = ledger_of(6, d1={"oof_digest": "other"}, d2=unnamed, d3=unnamed | fewer, d4=fewer, d5={"is_doubted": True})
    assert "2 different blends on these 400 rows" in repeated_choices(ledger, ENTRY, 0.5)[0]


def test_every_honest_result_of_a_submission_is_counted_once_whatever_came_after_it() -> None:
    ledger = ledger_of(2)
    first = ledger.entries[0]
    again, other = replace(first, made="later"), replace(first, honest_score=0.81)  # other out-of-fold predictions
    ledger = replace(ledger, entries=(*ledger.entries, other, again, replace(first, metric="macro_f1")))
    (line,) = repeated_choices(ledger, ENTRY, 0.5)
    assert "3 different blends on these 400 rows" in line and line.endswith("at most 0.0296 too good")
    assert repeated_choices(ledger_of(1), ENTRY, 0.5) == []


def test_the_bound_holds_for_independent_scores_and_is_larger_for_public_scores_of_fewer_rows() -> None:
    ledger = ledger_of(6, public=(0.80, 0.81, 0.79, 0.80, 0.805))
    cases = ((0.5, 0), (0.2, 1), (1.0, 1))  # share of the public rows, number of the line
    of_blends, few, many = (bound(repeated_choices(ledger, ENTRY, share), n) for share, n in cases)
    largest = np.random.default_rng(0).normal(0, ENTRY.standard_error, (2000, 6)).max(1).mean()
    assert largest < of_blends < 1.6 * largest and few > 1.8 * many > 0
    # Whichever blend is asked about, the noisiest one counts, so the line is the same everywhere.
    noisy = ledger_of(6, d2={"standard_error": 2 * ENTRY.standard_error})
    lines = {repeated_choices(noisy, entry, 0.5)[0] for entry in noisy.entries}
    assert len(lines) == 1 and bound([*lines], 0) == pytest.approx(2 * of_blends, abs=2e-4)


def bound(lines: list[str], number: int) -> float:
    return float(lines[number].split()[-3])
