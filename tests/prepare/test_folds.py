import numpy as np
import pandas as pd
import pytest

from competition.config.errors import UserError
from competition.prepare import folds
from competition.prepare.adapters.flowers import CLASSES
from competition.prepare.targets import Targets


def table(labels, groups=None):
    rows = np.arange(len(labels))
    ids, groups = [f"i{n:05}" for n in rows], rows if groups is None else groups
    return pd.DataFrame(
        {"id": ids, "label": labels, "part": "train", "group": groups, "fold": -1, "sha256": groups, "problem": ""}
    )


def test_classes_are_spread_evenly_over_folds_and_no_group_is_split():
    """Rows with the class shares of the flower competition, and 120 duplicate groups of 2 to 5."""
    rng, counts = np.random.default_rng(0), np.array([*CLASSES.values()])
    index = table(rng.permutation(np.repeat(np.arange(104), counts * 6_000 // counts.sum())))
    for _ in range(120):
        of_class = np.flatnonzero(index["label"] == index["label"][rng.integers(len(index))])
        duplicates = rng.choice(of_class, rng.integers(2, 6), replace=False)
        index.loc[duplicates, "group"] = index["group"][duplicates].min()
    index["fold"] = folds.assign(index, 5, seed=42)
    support = folds.support(index, 104)
    assert support.to_numpy().sum() == len(index) and support.to_numpy().min() >= 1
    assert index.groupby("group")["fold"].nunique().max() == 1
    rows = support.to_numpy(float)  # class shares differ by at most .04 in all between a fold and all rows
    assert np.abs(rows / rows.sum(0) - rows.sum(1, keepdims=True) / rows.sum()).sum(0).max() <= 0.04
    assert np.ptp(support.sum(0)) <= 0.01 * len(index) and (support > 0).all(axis=None)


@pytest.mark.parametrize("seed", range(5))
def test_as_many_groups_as_folds_are_the_folds_so_that_a_user_can_state_them(seed):
    rng = np.random.default_rng(seed)
    stated = rng.choice(5, 300, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    for labels in (rng.integers(0, 3, 300), stated):  # spread over the folds, and each in one fold only
        index = table(labels, stated)
        index["fold"] = folds.assign(index, 5, seed)
        assert len(index[["group", "fold"]].drop_duplicates()) == index["fold"].nunique() == 5


@pytest.mark.parametrize("rare_rows", [1, 2, 3])
def test_a_class_with_too_few_rows_is_spread_over_as_many_folds_as_possible_and_listed(rare_rows):
    index = table([0] * 50 + [1] * rare_rows)
    index["fold"] = folds.assign(index, 5, seed=0)
    support = folds.support(index, 3)
    assert support.loc[1].max() == 1 and support.loc[1].sum() == rare_rows
    assert support.index[(support == 0).any(axis=1)].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("labels", "groups", "message"),
    [
        ([0, 0, 0, 0], [0, 0, 0, 0], "the 4 training images are the same picture, and copies are never in"),
        ([0, 0, 0, 0], [0, 0, 1, 1], "the 4 training images are copies of 2 pictures"),
        ([0, 0], None, "2 different training images cannot make 3 folds; lower prepare.folds to 2"),
        ([0, 0, 1, 1], None, "no class has 3"),
    ],
)
def test_too_few_rows_for_the_folds_are_an_error(labels, groups, message):
    with pytest.raises(UserError, match=message):
        folds.assign(table(labels, groups), 3, seed=0)


def test_folds_have_equal_shares_of_every_label_also_of_rare_sets():
    cells = np.random.default_rng(0).random((600, 6)) < [0.6, 0.4, 0.3, 0.2, 0.1, 0.04]
    sets, labels = np.unique(cells, axis=0, return_inverse=True)
    targets, index = Targets("multi", sets), table(labels)
    index["fold"] = folds.assign(index, 5, 0, targets)
    counts = folds.support(index, 6, targets).to_numpy()
    assert counts.sum(1).tolist() == cells.sum(0).tolist()
    rare = counts[5] / counts[5].sum()
    assert rare.min() > 0.1 and rare.max() < 0.3  # 24 rows, 5 folds: 0.2
    assert np.ptp(counts[:3] / counts[:3].sum(1, keepdims=True), axis=1).max() < 0.04


def test_folds_of_a_regression_have_equal_distributions():
    values = np.sort(np.random.default_rng(0).normal(0, 1, 200))
    targets, index = Targets("regression", values), table(np.arange(200))
    index["fold"] = folds.assign(index, 4, 0, targets)
    means = [values[index["fold"] == fold].mean() for fold in range(4)]
    assert not np.array_equal(index["fold"], folds.assign(index, 4, 1, targets))  # they depend on the seed
    assert np.ptp(means) < 0.1 and folds.support(index, 1, targets).to_numpy().tolist() == [[50, 50, 50, 50]]
