"""Stored blends of a few rows: which rows they share, how often choices were made on them, and the optimism of the best."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import competition, ledger_entry

from competition.config.errors import UserError
from competition.ensemble.bootstrap import Evaluation, resampled
from competition.ensemble.metrics import METRICS
from competition.prepare.prepared import Prepared
from competition.report.repeated_choices import RepeatedChoices, expected_optimism, normal_optimism, repeated_choices
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


def choices_of(ledger: Ledger, blends: Path, data: Prepared | None = PREPARED, share: float = 0.5) -> RepeatedChoices:
    return repeated_choices(ledger, ENTRY, blends, data, share, seed=0)


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


def test_blends_of_other_rows_or_with_a_doubt_are_not_counted_and_without_a_digest_the_size_counts(tmp_path) -> None:
    fewer = {"oof_rows": ROWS - 50}  # fitted on the same rows, of which 50 chose hyperparameters
    other, unnamed, doubted = {"oof_digest": "other"}, {"oof_digest": ""}, {"is_doubted": True}
    ledger = ledger_of(6, d1=other, d2=unnamed, d3=unnamed | fewer, d4=fewer, d5=doubted)
    assert choices_of(ledger, tmp_path).blends == 2


def test_every_honest_result_of_a_submission_is_counted_once_whatever_came_after_it(tmp_path: Path) -> None:
    ledger, better = ledger_of(2), 0.81
    first = ledger.entries[0]
    store_blend(tmp_path / "b0", 0)
    store_blend(tmp_path / "b0-0123ab", 1, honest=better)  # the same submission, other out-of-fold predictions
    store_blend(tmp_path / "b1", 2)
    again, other = replace(first, made="later"), replace(first, honest_score=better)
    of_other_metric = replace(first, metric="macro_f1")
    ledger = replace(ledger, entries=(*ledger.entries, other, again, of_other_metric))
    choices = choices_of(ledger, tmp_path)
    assert choices.blends == 3 and not choices.blend_optimism.is_bound
    independent = normal_optimism(3, (0.8 * 0.2 / ROWS) ** 0.5)  # each has an output of its own
    assert choices.blend_optimism.value == pytest.approx(independent, rel=0.4)
    assert "3 different blends on these 400 rows; the best of their honest scores is expected" in choices.lines()[0]


def test_without_stored_outputs_the_optimism_is_a_bound(tmp_path: Path) -> None:
    for data in (PREPARED, None):
        choices = choices_of(ledger_of(3), tmp_path, data)
        assert choices.blend_optimism.is_bound
        assert choices.blend_optimism.value == pytest.approx(normal_optimism(3, 0.02))
        assert "expected to be at most 0.0169 too good" in choices.lines()[0]


def test_public_scores_of_fewer_rows_have_larger_errors(tmp_path: Path) -> None:
    for n in range(5):
        store_blend(tmp_path / f"b{n}", n)
    ledger = ledger_of(6, public=(0.80, 0.81, 0.79, 0.80, 0.805))
    few, many = (choices_of(ledger, tmp_path, share=share) for share in (0.2, 1.0))
    assert few.submissions == 5 and not few.public_optimism.is_bound
    assert few.public_optimism.value == pytest.approx(normal_optimism(5, (0.8 * 0.2 / 40) ** 0.5), rel=0.25)
    assert few.public_optimism.value > 1.8 * many.public_optimism.value > 0
    assert "5 public scores; the best of them is expected to be" in few.lines()[-1]


ACCURACY, SIMULATIONS = METRICS["accuracy"], 60


def scores_and_draws(seed: int, accuracies: np.ndarray, common: float) -> tuple[np.ndarray, np.ndarray]:
    """(n,) scores of simulated candidates on the same rows, and (n, R) scores on R resamples of them.

    accuracies: (n,).  common: share of the rows that all candidates predict identically.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, ROWS)
    is_common, common_draw = rng.random(ROWS) < common, rng.random(ROWS)
    draws = [np.where(is_common, common_draw, rng.random(ROWS)) for _ in accuracies]
    candidates = [np.where(draw < share, labels, (labels + 1) % CLASSES) for draw, share in zip(draws, accuracies)]
    scores = np.array([np.mean(output == labels) for output in candidates])
    return scores, np.stack(resampled(labels, candidates, Evaluation(ACCURACY, CLASSES, 100, seed)))


@pytest.mark.parametrize(("candidates", "common"), [(2, 0.8), (20, 0.0)])
def test_the_optimism_of_equal_candidates_is_the_true_one_within_error(candidates: int, common: float) -> None:
    simulated = [scores_and_draws(seed, np.full(candidates, 0.8), common) for seed in range(SIMULATIONS)]
    optimism = np.array([scores.max() - 0.8 for scores, _ in simulated])
    expected = np.mean([expected_optimism(scores, draws) for scores, draws in simulated])
    assert abs(optimism.mean() - expected) < 2.5 * optimism.std() / SIMULATIONS**0.5 and expected > 0


def test_much_worse_candidates_do_not_change_the_optimism_of_the_best() -> None:
    """They cannot be the best, and their distance does not say that the best ones differ by more than noise."""
    scores, draws = scores_and_draws(0, np.array([0.90, 0.91, *[0.5] * 8]), 0.0)
    assert expected_optimism(scores, draws) == expected_optimism(scores[:2], draws[:2]) > 0.005


@pytest.mark.parametrize(("candidates", "largest"), [(2, 0.5642), (3, 0.8463), (10, 1.5388), (50, 2.2491)])
def test_the_normal_approximation_is_the_known_mean_of_the_largest(candidates: int, largest: float) -> None:
    assert normal_optimism(candidates, 2.0) == pytest.approx(2 * largest, abs=2e-3)
