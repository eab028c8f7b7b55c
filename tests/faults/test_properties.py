"""Properties of every path of data, on inputs drawn by hypothesis: parameters and ids have theirs beside their modules."""

import csv
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.ensemble.blend import BlendSettings, fit_blend
from competition.ensemble.metrics import METRICS
from competition.ensemble.mixing import mix
from competition.ensemble.policy import PolicySettings, ViewCache, fit_policy
from competition.ensemble.predictions import Predictions, ViewPredictions, concatenate_folds, mean_over_folds
from competition.prepare.adapters.tables import read_csv
from competition.prepare.competition import Competition
from competition.prepare.folds import assign
from competition.report.tables import for_spreadsheet
from competition.submission import format
from competition.submission.format import FORMULA

FEW = settings(max_examples=40, deadline=None)
IDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=8)
UNIQUE_IDS = st.lists(IDS, min_size=1, max_size=12, unique=True)
SEEDS = st.integers(0, 2**32 - 1)
FLOWERS = Competition(
    name="flowers", slug="", classes=("rose", "iris", "lily"), metric="macro_f1", predicts="label", id_column="id",
    prediction_columns=("label",), label_values=("0", "1", "2"),
)  # fmt: skip
F1 = METRICS["macro_f1"]
BLEND = BlendSettings(("equal",), rounds=5, bags=2, ridge=1.0, seed=0)
POLICY = PolicySettings("greedy", objective="log_likelihood", rounds=5, seconds_limit=0, same_below=1e-3)


def probabilities(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32)


@FEW
@given(ids=UNIQUE_IDS, seed=SEEDS)
def test_a_join_returns_the_row_of_each_id_in_any_order(ids: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs = probabilities(rng, len(ids), 3)
    order, wanted = rng.permutation(len(ids)), rng.permutation(len(ids))
    shuffled = Predictions(np.array(ids)[order], probs[order])
    np.testing.assert_array_equal(shuffled.rows(np.array(ids)[wanted]), probs[wanted])
    with pytest.raises(UserError, match="1 of 1 ids have no prediction"):
        shuffled.rows(np.array(["".join(ids) + "x"]))
    with pytest.raises(UserError, match="1 repeated id, first"):
        Predictions(np.array([*ids, ids[0]]), np.concatenate([probs, probs[:1]]))


@FEW
@given(ids=UNIQUE_IDS, seed=SEEDS, folds=st.integers(1, 4))
def test_folds_are_concatenated_and_averaged_by_id(ids: list[str], seed: int, folds: int) -> None:
    rng = np.random.default_rng(seed)
    of_fold = rng.integers(0, folds, len(ids))
    names, probs = np.array(ids), probabilities(rng, len(ids), 1, 3)
    parts = [ViewPredictions(names[of_fold == k], ("identity",), probs[of_fold == k]) for k in set(of_fold)]
    np.testing.assert_array_equal(concatenate_folds(parts).at(names).probs, probs)
    tests = []
    for order in (rng.permutation(len(ids)) for _ in range(folds)):
        tests.append(ViewPredictions(names[order], ("identity",), probs[order]))
    np.testing.assert_allclose(mean_over_folds(tests).at(names).probs, probs, atol=1e-3)


@FEW
@given(ids=UNIQUE_IDS, seed=SEEDS)
def test_a_submission_is_read_back_with_the_id_and_label_of_every_row(
    tmp_path_factory, ids: list[str], seed: int
) -> None:
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("submission")
    labels, order = rng.integers(0, 3, len(ids)), rng.permutation(len(ids))
    sample = pd.DataFrame({"id": ids, "label": "0"}).to_csv(index=False, lineterminator="\n")
    (folder / "sample.csv").write_text(sample, encoding="utf-8", newline="")
    predictions = (np.array(ids)[order], labels[order], FLOWERS, folder / "sample.csv")
    (folder / "own.csv").write_bytes(format.render(*predictions))
    checked = format.check(folder / "own.csv", folder / "sample.csv", ids, FLOWERS)
    assert checked.mended == [] and checked.content == (folder / "own.csv").read_bytes()
    read_ids, cells = format.read_predictions(folder / "own.csv", FLOWERS)
    assert read_ids == ids and [int(cell) for (cell,) in cells] == labels.tolist()


@FEW
@given(
    rows=st.lists(st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=6),
                           min_size=2, max_size=2), max_size=8)
)  # fmt: skip
def test_cells_of_a_csv_are_read_as_the_text_that_was_written(tmp_path_factory, rows: list[list[str]]) -> None:
    path, text = tmp_path_factory.mktemp("csv") / "a.csv", io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([["id", "label"], *rows])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    assert read_csv(path).to_numpy().tolist() == rows


@FEW
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_table_or_a_user_error(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "a.csv"
    path.write_bytes(data)
    try:
        assert isinstance(read_csv(path), pd.DataFrame)
    except UserError as error:
        assert "a.csv" in str(error)


@FEW
@given(seed=SEEDS, folds=st.integers(2, 5), classes=st.integers(1, 4))
def test_every_training_row_is_in_one_fold_that_neither_order_nor_duplicates_decide(seed, folds, classes) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4 * folds * classes, 8 * folds * classes))
    index = pd.DataFrame(
        {
            "id": [f"i{n}" for n in range(count)],
            "part": np.where(rng.random(count) < 0.1, "test", "train"),
            "group": rng.integers(0, 2 * count, count),
        }
    )
    index["label"] = index["group"] % classes
    try:
        index["fold"] = assign(index, folds, seed=1)
    except UserError as error:
        assert "lower prepare.folds" in str(error)
        return
    train = index[index["part"] == "train"]
    assert train["fold"].between(0, folds - 1).all() and (index["fold"][index["part"] == "test"] == -1).all()
    assert (train.groupby("group")["fold"].nunique() == 1).all()
    shuffled = index.sample(frac=1, random_state=seed % 1000).reset_index(drop=True)
    again = dict(zip(shuffled["id"], assign(shuffled, folds, seed=1)))
    assert again == dict(zip(index["id"], index["fold"]))


@FEW
@given(seed=SEEDS, views=st.integers(1, 4), metric=st.sampled_from(["macro_f1", "accuracy", "log_loss"]))
def test_a_policy_is_a_mean_over_views_that_rows_outside_the_fit_do_not_change(seed, views, metric) -> None:
    rng = np.random.default_rng(seed)
    names = ("identity", "flip_lr", "flip_ud", "shift_up")[:views]
    probs, labels, ids = probabilities(rng, 30, views, 3), rng.integers(0, 3, 30), np.arange(30).astype(str)
    rows = np.flatnonzero(rng.random(30) < 0.7)
    if len(rows) < 5:
        return
    policy = fit_policy(ViewCache(ViewPredictions(ids, names, probs), labels), rows, METRICS[metric], POLICY)
    assert sum(policy.values()) == pytest.approx(1) and all(weight > 0 for weight in policy.values())
    assert set(policy) <= set(names)
    others = np.setdiff1d(np.arange(30), rows)
    changed = labels.copy()
    changed[others] = (changed[others] + 1) % 3
    assert fit_policy(ViewCache(ViewPredictions(ids, names, probs), changed), rows, METRICS[metric], POLICY) == policy


@FEW
@given(seed=SEEDS, members=st.integers(1, 4), method=st.sampled_from(["equal", "best", "greedy", "bagged"]))
def test_a_blend_is_a_convex_mean_that_the_order_of_members_does_not_change(seed, members, method) -> None:
    rng = np.random.default_rng(seed)
    labels, probs = rng.integers(0, 3, 40), probabilities(rng, members, 40, 3)
    named = {f"m{n}": value for n, value in enumerate(probs)}
    blend = fit_blend(method, named, named.__getitem__, labels, F1, BLEND)
    weights = np.array(list(blend.weights.values()))
    assert (weights >= 0).all() and weights.sum() == pytest.approx(1)
    mixed = blend.mix(named)
    assert np.isfinite(mixed).all() and np.allclose(mixed.sum(1), 1, atol=1e-5)
    assert (mixed <= probs.max(0) + 1e-6).all() and (mixed >= probs.min(0) - 1e-6).all()
    assert dict(fit_blend(method, reversed(named), named.__getitem__, labels, F1, BLEND).weights) == dict(blend.weights)
    np.testing.assert_allclose(mix(probs, weights, "mean"), mixed, atol=1e-6)


@FEW
@given(cells=st.lists(st.text(max_size=6), min_size=1, max_size=5))
def test_no_cell_of_a_table_for_people_is_run_as_a_formula(cells: list[str]) -> None:
    written = for_spreadsheet(pd.DataFrame({"id": [*cells, *FORMULA], "n": 1}))
    assert not any(cell.startswith(FORMULA) for cell in written["id"])
    assert [cell.removeprefix("'") for cell in written["id"][: len(cells)]] == [
        cell.removeprefix("'") for cell in cells
    ]
