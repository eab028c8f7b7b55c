"""Stored blends of a few rows: which rows they share, and how often choices were made on them."""

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
from competition.report.repeated_choices import normal_optimism, repeated_choices
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


def test_rows_that_tuned_a_blend_and_rows_that_were_removed_are_not_scored(tmp_path: Path) -> None:
    a, b = store_blend(tmp_path / "a", 1, tuned=50), store_blend(tmp_path / "b", 2, IDS[10:])
    rows = shared_rows([a, b], prepared(IDS[:-20]))
    assert rows.ids.tolist() == IDS[50:-20].tolist() and rows.labels.tolist() == LABELS[50:-20].tolist()
    assert (rows.unknown, rows.tuned) == (20, 40) and [note.split()[0] for note in rows.notes()] == ["20", "40"]
    stored = pd.read_csv(a / "honest_oof.csv").set_index("id")["label"]
    assert stored_output(a, rows.ids, METRICS["accuracy"], CLASSES).tolist() == stored.loc[rows.ids].tolist()


def test_a_blend_of_which_every_row_chose_hyperparameters_is_called_optimistic(tmp_path: Path) -> None:
    blends = [store_blend(tmp_path / "a", 1), store_blend(tmp_path / "b", 2, optimistic=True)]
    (note,) = shared_rows(blends, prepared()).notes()
    assert note.startswith("OPTIMISTIC: every fold chose hyperparameters of b")


def test_a_blend_of_other_data_is_an_error(tmp_path: Path) -> None:
    a = store_blend(tmp_path / "a", 1)
    other = replace(prepared(), index=prepared().index.assign(id=[f"x{n}" for n in range(ROWS)]))
    with pytest.raises(
        UserError, match=r"no training row can be used to compare a: .* 400 are not in the prepared data"
    ):
        shared_rows([a], other)
    with pytest.raises(UserError, match="a has other classes than the 2"):
        stored_output(a, IDS, METRICS["accuracy"], 2)


def test_equal_blends_are_counted_and_the_best_has_the_optimism_of_independent_scores(tmp_path: Path) -> None:
    for n in range(8):
        store_blend(tmp_path / f"b{n}", n)
    choices = repeated_choices(ledger_of(8), ENTRY, tmp_path, prepared(), 0.5, seed=0)
    true = normal_optimism(8, (0.8 * 0.2 / ROWS) ** 0.5)
    assert choices.blends == 8 and not choices.blend_optimism.is_bound
    assert choices.blend_optimism.value == pytest.approx(true, rel=0.25)
    (line,) = choices.lines()
    assert "8 different blends on these 400 rows; the best of their honest scores is expected to be 0.02" in line


def test_blends_of_other_rows_or_with_a_doubt_are_not_counted_and_entries_without_digest_match_by_size(
    tmp_path: Path,
) -> None:
    fewer = {"oof_rows": ROWS - 50}  # fitted on the same rows, of which 50 chose hyperparameters
    other, unnamed, doubted = {"oof_digest": "other"}, {"oof_digest": ""}, {"is_doubted": True}
    ledger = ledger_of(6, d1=other, d2=unnamed, d3=unnamed | fewer, d4=fewer, d5=doubted)
    assert repeated_choices(ledger, ENTRY, tmp_path, prepared(), 0.5, seed=0).blends == 2


def test_every_honest_result_of_a_submission_is_counted_once_whatever_came_after_it(tmp_path: Path) -> None:
    ledger, better = ledger_of(2), 0.81
    first = ledger.entries[0]
    store_blend(tmp_path / "b0", 0)
    store_blend(tmp_path / "b0-0123ab", 1, honest=better)  # the same submission, other out-of-fold predictions
    store_blend(tmp_path / "b1", 2)
    again, other = replace(first, made="later"), replace(first, honest_score=better)
    of_other_metric = replace(first, metric="macro_f1")
    ledger = replace(ledger, entries=(*ledger.entries, other, again, of_other_metric))
    choices = repeated_choices(ledger, ENTRY, tmp_path, prepared(), 0.5, seed=0)
    assert choices.blends == 3 and not choices.blend_optimism.is_bound
    equal = normal_optimism(3, (0.8 * 0.2 / ROWS) ** 0.5)  # each has an output of its own
    assert choices.blend_optimism.value == pytest.approx(equal, rel=0.4)


def test_without_stored_outputs_the_optimism_is_a_bound(tmp_path: Path) -> None:
    for data in (prepared(), None):
        choices = repeated_choices(ledger_of(3), ENTRY, tmp_path, data, 0.5, seed=0)
        assert choices.blend_optimism.is_bound
        assert choices.blend_optimism.value == pytest.approx(normal_optimism(3, 0.02))
        assert "expected to be at most 0.0169 too good" in choices.lines()[0]


def test_public_scores_of_fewer_rows_have_larger_errors(tmp_path: Path) -> None:
    for n in range(5):
        store_blend(tmp_path / f"b{n}", n)
    ledger = ledger_of(6, public=(0.80, 0.81, 0.79, 0.80, 0.805))
    few, many = (repeated_choices(ledger, ENTRY, tmp_path, prepared(), share, seed=0) for share in (0.2, 1.0))
    assert few.submissions == 5 and not few.public_optimism.is_bound
    assert few.public_optimism.value == pytest.approx(normal_optimism(5, (0.8 * 0.2 / 40) ** 0.5), rel=0.25)
    assert few.public_optimism.value > 1.8 * many.public_optimism.value > 0
    assert "5 public scores; the best of them is expected to be" in few.lines()[-1]
