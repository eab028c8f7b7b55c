import numpy as np
import pandas as pd
import pytest

from competition.data import leaks


def table(rows):
    """rows: (id, part, label, group); the digest is the id unless it says otherwise with an @."""
    made = pd.DataFrame(rows, columns=["name", "part", "label", "group"])
    made["id"] = made["name"].str.split("@").str[0]
    made["sha256"] = made["name"].str.split("@").str[-1]
    return made


SMALL = [
    ("a", "train", 0, 0), ("b", "train", 0, 1), ("c", "train", 1, 2), ("d", "train", 1, 3),
    ("v", "val", 1, 3),
    ("t1@a", "test", -1, 0), ("t2", "test", -1, 0), ("t3", "test", -1, 5), ("t4", "test", -1, 6),
    ("e1", "external", 0, 5), ("e2", "external", 1, 2), ("e3", "external", 1, 9), ("e4", "external", 1, 9),
]  # fmt: skip


def test_every_meeting_of_two_parts_is_listed_once():
    found = leaks.find_leaks(table(SMALL))
    assert found[["kind", "id", "match", "label", "exact"]].to_numpy().tolist() == [
        ["test in train", "t1", "a", 0, True],
        ["test in train", "t2", "a", 0, False],
        ["test in external", "t3", "e1", 0, False],
        ["val in train", "v", "d", 1, False],
        ["train in external", "c", "e2", 1, False],
    ]


def test_a_row_that_meets_several_is_listed_once_with_its_exact_copy_if_there_is_one():
    rows = [("a", "train", 0, 0), ("b", "train", 1, 0), ("t@b", "test", -1, 0)]
    assert leaks.find_leaks(table(rows))[["id", "match", "label", "exact"]].to_numpy().tolist() == [["t", "b", 1, True]]


def test_inflation_is_counted_per_row_and_per_class():
    index = table(SMALL)
    told = leaks.inflation(index, leaks.find_leaks(index), classes=2)
    assert (told.touched, told.rows, told.accuracy) == (3, 4, 0.75)
    # Class 0 is half of train, so 2 of 4 test rows; all are touched. Class 1: none.
    assert told.macro_recall == pytest.approx((1 + 0) / 2)


def test_no_leak_is_no_inflation():
    index = table([("a", "train", 0, 0), ("b", "train", 1, 1), ("t", "test", -1, 2)])
    found = leaks.find_leaks(index)
    told = leaks.inflation(index, found, classes=2)
    assert len(found) == 0 and (told.accuracy, told.macro_recall) == (0, 0)


def test_a_memorising_model_never_gains_more_than_the_bound():
    """Guess at random, then answer every leaked row right: accuracy and macro recall rise by at most what was said."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        truth = np.repeat([0, 1, 2], [20, 40, 60])
        leaked = rng.uniform(size=120) < 0.2
        rows = [(f"a{n}", "train", int(label), n) for n, label in enumerate(truth)]
        rows += [(f"t{n}", "test", -1, n if leaked[n] else 1000 + n) for n in range(120)]
        index = table(rows)
        told = leaks.inflation(index, leaks.find_leaks(index), classes=3)
        guess = rng.integers(0, 3, 120)
        right, knowing = guess == truth, (guess == truth) | leaked
        recall = [np.mean([hit[truth == c].mean() for c in range(3)]) for hit in (right, knowing)]
        assert knowing.mean() - right.mean() <= told.accuracy + 1e-12
        assert recall[1] - recall[0] <= told.macro_recall + 1e-12


def test_external_photos_of_the_competition_leave_and_are_counted():
    kept, removed = leaks.without_leaking_external(table(SMALL))
    assert removed.to_numpy().tolist() == [["e1", 0, "test"], ["e2", 1, "train"]]
    assert kept["id"].tolist() == ["a", "b", "c", "d", "v", "t1", "t2", "t3", "t4", "e3", "e4"]


def test_external_photos_that_meet_each_other_stay():
    kept, removed = leaks.without_leaking_external(
        table([("a", "train", 0, 0), ("e", "external", 0, 1), ("f", "external", 0, 1)])
    )
    assert len(removed) == 0 and len(kept) == 3
