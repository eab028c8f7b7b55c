"""Rows that make a score optimistic or foreign: leaks, wrong labels, series of one object, and test rows unlike training rows."""

from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from data_fixtures import another_photo, digit_thumbs, scene, thumb
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from competition.prepare import label_issues, leaks, series, shift
from competition.prepare.series import image_descriptors
from competition.report.caveats import series_line


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


def test_a_rare_class_is_nearly_a_common_one_if_the_name_is_and_has_no_number():
    rows = {"daisy": 39, "dasiy": 1, "dais": 0, "rose": 2, "roses": 19, "iris 1": 30, "iris 2": 1}
    rows |= {"tulip": 20, "tulips": 2, "Tulip ": 1}
    assert label_issues.misspelt_classes(rows) == {"dasiy": "daisy", "tulips": "tulip", "Tulip ": "tulip"}


def test_each_leak_between_two_parts_is_listed_once_with_an_exact_copy_preferred():
    leak_table = leaks.find_leaks(table(SMALL))
    assert leak_table[["kind", "id", "match", "label", "exact"]].to_numpy().tolist() == [
        ["test in train", "t1", "a", 0, True],
        ["test in train", "t2", "a", 0, False],
        ["test in external", "t3", "e1", 0, False],
        ["val in train", "v", "d", 1, False],
        ["train in external", "c", "e2", 1, False],
    ]
    several = leaks.find_leaks(table([("a", "train", 0, 0), ("b", "train", 1, 0), ("t@b", "test", -1, 0)]))
    assert several[["id", "match", "label", "exact"]].to_numpy().tolist() == [["t", "b", 1, True]]


def test_what_leaks_can_add_is_stated():
    index = table(SMALL)
    sentence = leaks.leak_sentence(index, leaks.find_leaks(index), "single")
    found = "3 of 4 test images are or resemble labelled images (2 nearly equal: see whether they are copies)"
    assert sentence == f"{found}: worth at most 0.7500 of accuracy"


def test_external_photos_that_occur_in_the_competition_are_removed_and_listed():
    remaining, removed = leaks.without_leaking_external(table(SMALL))
    assert removed.to_numpy().tolist() == [["e1", 0], ["e2", 1]]
    # e3 and e4 match only each other.
    assert remaining["id"].tolist() == ["a", "b", "c", "d", "v", "t1", "t2", "t3", "t4", "e3", "e4"]


def index_of(labels, groups=None, part="train"):
    rows = len(labels)
    groups = np.arange(rows) if groups is None else groups
    ids = [f"i{n:04}" for n in range(rows)]
    return pd.DataFrame({"id": ids, "label": labels, "part": part, "problem": "", "group": groups})


def test_almost_no_series_are_found_in_data_without_series():
    thumbs, labels = digit_thumbs()
    members = series.find_series(index_of(labels), image_descriptors(thumbs))
    assert len(members) <= 0.004 * len(labels)


def test_a_series_contains_training_rows_of_one_class_only():
    thumbs = np.stack([thumb(scene(n)) for n in range(40)] + [thumb(another_photo(scene(0), n)) for n in range(4)])
    labels = np.r_[np.arange(40) % 2, [0, 0, 1, 1]]
    members = series.find_series(index_of(labels), image_descriptors(thumbs))
    assert len(members) and (members.groupby("series")["label"].nunique() == 1).all()
    part = np.where(np.arange(44) < 40, "train", "test")
    assert len(series.find_series(index_of(labels, part=part), image_descriptors(thumbs))) == 0


def test_duplicates_alone_are_not_a_series_but_may_belong_to_one():
    thumbs = np.stack([thumb(scene(n)) for n in range(40)] + [thumb(scene(0)), thumb(another_photo(scene(1), 5))])
    groups = np.r_[np.arange(40), 0, 41]
    descriptors = image_descriptors(thumbs)
    assert series.find_series(index_of([0] * 42, groups), descriptors)["id"].tolist() == ["i0001", "i0041"]
    groups[2] = 1  # a duplicate by its hash, although its descriptor differs
    assert series.find_series(index_of([0] * 42, groups), descriptors)["id"].tolist() == ["i0001", "i0002", "i0041"]


def test_series_that_chance_may_have_joined_are_called_weak_evidence_and_have_one_number_in_table_and_sheet():
    index = index_of([0] * 40).assign(fold=np.arange(40) % 2)
    for apart, is_weak in ((0.2, False), (0.6, True)):
        members = pd.DataFrame({"series": [7, 7, 3, 3], "id": index["id"][[7, 9, 3, 4]], "label": 0, "nearest": "x"})
        members["distance"] = [apart, apart, 0.6, 0.6]
        assert series.may_be_chance(members, 40) == is_weak
        assert not series.may_be_chance(members, 39)  # so many are not joined by chance
        (line,) = series_line(index, members, "hash")
        assert ("weak evidence" in line) == ("before you join any" in line) == is_weak
    captions = series.sheet_tiles(members, index)
    assert {row_id: text.splitlines()[0] for row_id, text in captions.items()} == {
        row_id: f"series {number}" for row_id, number in zip(members["id"], members["series"])
    }


@pytest.mark.parametrize("rows", [0, 1, 7, 40])
def test_no_series_is_found_in_a_class_of_few_rows_or_of_identical_images(rows):
    thumbs = np.zeros((rows, 16, 16, 3), np.uint8)
    assert len(series.find_series(index_of(np.arange(rows) // 20), image_descriptors(thumbs))) == 0


@pytest.fixture(autouse=True)
def single_threaded():
    """Use one thread: for small matrices, several threads on busy cores are slower."""
    with threadpool_limits(1):
        yield


def compare_parts(embedding, is_test):
    index = index_of([0] * len(embedding), part=np.where(is_test, "test", "train"))
    return shift.compare(index, embedding, np.arange(len(embedding)))


def test_random_splits_of_several_seeds_raise_no_warning():
    digits = image_descriptors(digit_thumbs()[0])
    for seed in range(8):
        rng = np.random.default_rng(seed)
        chosen = digits[rng.choice(len(digits), 400, replace=False)]
        result, _ = compare_parts(chosen, rng.random(400) < 0.3)
        assert result is not None and not result.differs, f"seed {seed}: {result}"


@pytest.mark.parametrize("light", [(0.7, 0.7, 0.7), (1.0, 0.9, 0.75)], ids=["darker images", "other colours"])
def test_a_planted_shift_raises_the_warning(light):
    thumbs = digit_thumbs()[0][:600] * 0.8 + 30
    is_test = np.random.default_rng(0).random(600) < 0.3
    thumbs[is_test] *= light
    result, rows = compare_parts(image_descriptors(thumbs.clip(0, 255).astype(np.uint8)), is_test)
    assert result is not None and result.differs and result.unlike > 0.5 * result.test_rows
    odds = rows.groupby("part")["odds"].median()
    assert odds["test"] > 1 > odds["train"]


def test_the_auc_agrees_with_scikit_learn_and_its_error_with_the_bootstrap():
    rng = np.random.default_rng(0)
    negative, positive = rng.normal(0, 1, 300).round(1), rng.normal(0.7, 1, 120).round(1)  # rounded: ties
    auc, error = shift.auc_with_error(negative, positive)
    truth = np.r_[np.zeros(300), np.ones(120)]
    assert auc == pytest.approx(roc_auc_score(truth, np.r_[negative, positive]))
    draws = [shift.auc_with_error(rng.choice(negative, 300), rng.choice(positive, 120))[0] for _ in range(2000)]
    assert error == pytest.approx(np.std(draws), rel=0.08)


@pytest.mark.skipif(find_spec("cleanlab") is None, reason="cleanlab is not installed (goldfold[labels])")
def test_planted_wrong_labels_are_listed_with_the_least_probable_first():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 400)
    probs = 0.4 * rng.dirichlet(np.ones(4), 400)
    probs[np.arange(400), truth] += 0.6
    labels = truth.copy()
    wrong = rng.choice(400, 20, replace=False)
    labels[wrong] = (truth[wrong] + 1) % 4
    issues = label_issues.find_label_issues(np.array([f"i{n}" for n in range(400)]), labels, probs)
    assert set(issues["id"]) <= {f"i{n}" for n in wrong} and len(issues) >= 10
    assert issues["label_probability"].is_monotonic_increasing
    assert all(issues["suggested"] == [truth[int(image_id[1:])] for image_id in issues["id"]])
