import pandas as pd
import pytest

from competition.prepare import leaks


def table(rows):
    """rows: (id, part, label, group); an id may be written id@digest; otherwise its digest is the id."""
    index = pd.DataFrame(rows, columns=["name", "part", "label", "group"])
    index["id"] = index["name"].str.split("@").str[0]
    index["sha256"] = index["name"].str.split("@").str[-1]
    return index


SMALL = [
    ("a", "train", 0, 0), ("b", "train", 0, 1), ("c", "train", 1, 2), ("d", "train", 1, 3),
    ("v", "val", 1, 3),
    ("t1@a", "test", -1, 0), ("t2", "test", -1, 0), ("t3", "test", -1, 5), ("t4", "test", -1, 6),
    ("e1", "external", 0, 5), ("e2", "external", 1, 2), ("e3", "external", 1, 9), ("e4", "external", 1, 9),
]  # fmt: skip


def test_each_leak_between_two_parts_is_listed_once():
    leak_table = leaks.find_leaks(table(SMALL))
    assert leak_table[["kind", "id", "match", "label", "exact"]].to_numpy().tolist() == [
        ["test in train", "t1", "a", 0, True],
        ["test in train", "t2", "a", 0, False],
        ["test in external", "t3", "e1", 0, False],
        ["val in train", "v", "d", 1, False],
        ["train in external", "c", "e2", 1, False],
    ]


def test_a_row_with_several_matches_is_listed_once_with_an_exact_copy_preferred():
    rows = [("a", "train", 0, 0), ("b", "train", 1, 0), ("t@b", "test", -1, 0)]
    assert leaks.find_leaks(table(rows))[["id", "match", "label", "exact"]].to_numpy().tolist() == [["t", "b", 1, True]]


def test_inflation_is_computed_over_rows_and_over_classes():
    index = table(SMALL)
    inflation = leaks.inflation(index, leaks.find_leaks(index), classes=2)
    assert (inflation.touched, inflation.rows, inflation.accuracy) == (3, 4, 0.75)
    # Class 0 is half of train, so 2 of 4 test rows; all are touched. Class 1: none.
    assert inflation.macro_recall == pytest.approx((1 + 0) / 2)
    index = table([("a", "train", 0, 0), ("b", "train", 1, 1), ("t", "test", -1, 2)])  # without a leak
    inflation = leaks.inflation(index, leaks.find_leaks(index), classes=2)
    assert len(leaks.find_leaks(index)) == 0 and (inflation.accuracy, inflation.macro_recall) == (0, 0)


def test_external_photos_that_occur_in_the_competition_are_removed_and_listed():
    remaining, removed = leaks.without_leaking_external(table(SMALL))
    assert removed.to_numpy().tolist() == [["e1", 0, "test"], ["e2", 1, "train"]]
    # e3 and e4 match only each other.
    assert remaining["id"].tolist() == ["a", "b", "c", "d", "v", "t1", "t2", "t3", "t4", "e3", "e4"]
