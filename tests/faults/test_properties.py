"""Properties of every path of data, on inputs drawn by hypothesis: parameters and ids have theirs beside their modules."""

import csv
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.ensemble.stored_predictions import ViewPredictions
from competition.prepare.adapters.tables import read_csv
from competition.prepare.folds import assign

FEW = settings(max_examples=40, deadline=None)
IDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=8)
UNIQUE_IDS = st.lists(IDS, min_size=1, max_size=12, unique=True)
SEEDS = st.integers(0, 2**32 - 1)


@FEW
@given(ids=UNIQUE_IDS, seed=SEEDS)
def test_a_join_returns_the_row_of_each_id_in_any_order(ids: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(3), len(ids)).astype(np.float32)
    order, wanted = rng.permutation(len(ids)), rng.permutation(len(ids))
    shuffled = ViewPredictions(np.array(ids)[order], ("identity",), probs[order][:, None])
    np.testing.assert_array_equal(shuffled.at(np.array(ids)[wanted]).view("identity"), probs[wanted])
    with pytest.raises(UserError, match="1 of 1 ids have no prediction"):
        shuffled.at(np.array(["".join(ids) + "x"]))
    with pytest.raises(UserError, match="1 repeated id, first"):
        ViewPredictions(np.array([*ids, ids[0]]), ("identity",), np.concatenate([probs, probs[:1]])[:, None])


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
@given(seed=SEEDS, folds=st.integers(2, 5), classes=st.integers(1, 4))
def test_every_training_row_is_in_one_fold_that_neither_order_nor_duplicates_decide(seed, folds, classes) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4 * folds * classes, 8 * folds * classes))
    parts, groups = np.where(rng.random(count) < 0.1, "test", "train"), rng.integers(0, 2 * count, count)
    ids = np.arange(count).astype(str)
    index = pd.DataFrame({"id": ids, "part": parts, "group": groups, "label": groups % classes})
    try:
        index["fold"] = assign(index, folds, seed=1)
    except UserError as error:
        assert "lower prepare.folds" in str(error)
        return
    train = index[index["part"] == "train"]
    assert train["fold"].between(0, folds - 1).all() and (index["fold"][index["part"] == "test"] == -1).all()
    assert (train.groupby("group")["fold"].nunique() == 1).all()
    shuffled = index.sample(frac=1, random_state=seed % 1000).reset_index(drop=True)
    assert dict(zip(shuffled["id"], assign(shuffled, folds, seed=1))) == dict(zip(index["id"], index["fold"]))
