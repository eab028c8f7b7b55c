import numpy as np
import pandas as pd
import pytest

from competition.config.errors import UserError
from competition.prepare import folds
from competition.prepare.adapters.drawn import FLOWER_COUNTS

REAL_ROWS = 16_465  # train and validation of the flower competition


def table(labels, groups=None, parts="train"):
    rows = len(labels)
    return pd.DataFrame(
        {
            "id": [f"i{n:05}" for n in range(rows)],
            "label": labels,
            "part": parts,
            "group": np.arange(rows) if groups is None else groups,
            "fold": -1,
        }
    )


def flowers_like_index(seed=0):
    """16,465 rows with the real class counts scaled up from 12,753, and 300 duplicate groups of 2 to 5."""
    rng = np.random.default_rng(seed)
    counts = np.array(FLOWER_COUNTS)
    counts = np.floor(counts * REAL_ROWS / counts.sum()).astype(int)
    counts[: REAL_ROWS - counts.sum()] += 1
    index = table(rng.permutation(np.repeat(np.arange(104), counts)))
    for _ in range(300):
        label = rng.integers(104)
        duplicates = rng.choice(np.flatnonzero(index["label"] == label), rng.integers(2, 6), replace=False)
        index.loc[duplicates, "group"] = index["group"][duplicates].min()
    return index


def test_classes_are_spread_evenly_over_folds_and_no_group_is_split():
    index = flowers_like_index()
    assert len(index) == REAL_ROWS
    index["fold"] = folds.assign(index, 5, seed=42)
    support = folds.support(index, 104)
    assert support.to_numpy().sum() == REAL_ROWS and support.to_numpy().min() >= 3
    assert index.groupby("group")["fold"].nunique().max() == 1
    assert folds.share_errors(support).max() <= 0.02
    assert np.ptp(support.sum(0)) <= 0.01 * REAL_ROWS
    assert folds.thin_classes(support) == []


@pytest.mark.parametrize("rare_rows", [1, 2, 3])
def test_a_class_with_too_few_rows_is_spread_over_as_many_folds_as_possible_and_listed(rare_rows):
    index = table([0] * 50 + [1] * rare_rows)
    index["fold"] = folds.assign(index, 5, seed=0)
    support = folds.support(index, 3)
    assert support.loc[1].max() == 1 and support.loc[1].sum() == rare_rows
    assert folds.thin_classes(support) == [1, 2]


@pytest.mark.parametrize(
    ("labels", "groups", "message"),
    [([0, 0, 0, 0], [0, 0, 0, 0], "1 different training images cannot make 3"), ([0, 0, 1, 1], None, "no class has 3")],
)
def test_too_few_rows_for_the_folds_are_an_error(labels, groups, message):
    with pytest.raises(UserError, match=message):
        folds.assign(table(labels, groups), 3, seed=0)


def test_folds_depend_on_the_seed_and_a_test_row_in_a_group_does_not_affect_them():
    index = table([0] * 10 + [-1], groups=[*range(10), 3], parts=["train"] * 10 + ["test"])
    assigned = folds.assign(index, 5, seed=0)
    assert np.bincount(assigned[:10]).tolist() == [2] * 5 and assigned[10] == -1
    assert not np.array_equal(assigned, folds.assign(index, 5, seed=1))
