from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from builders import competition

from competition.config.errors import UserError
from competition.files.manifest import sha256
from competition.submission import submission_csv as submission

IDS = ["001", "NA", "1e5", "=cmd", "i4"]
LABELS = ["3", "0", "1", "2", "3"]


CLASSES, VALUES = ("rose", "iris", "lily", "aster"), ("0", "1", "2", "3")
LABEL = competition(CLASSES, label_values=VALUES)
PROBABILITIES = competition(CLASSES, predicts="probabilities", prediction_columns=CLASSES, label_values=VALUES)


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "sample_submission.csv"
    path.write_text("id,label\n" + "".join(f"{i},0\n" for i in IDS))
    return path


def text(ids=IDS, labels=LABELS, header="id,label") -> str:
    return f"{header}\n" + "".join(f"{i},{label}\n" for i, label in zip(ids, labels, strict=True))


def test_a_written_file_has_the_order_and_the_columns_of_the_sample(tmp_path, sample):
    path = tmp_path / "out.csv"
    shuffled = [4, 2, 0, 1, 3]
    ids, labels = np.array(IDS)[shuffled], np.array([3, 0, 1, 2, 3])[shuffled]
    digest = submission.write(ids, labels, LABEL, sample, path)
    assert path.read_text() == text() and digest == sha256(path)
    assert submission.check_sample(sample, IDS, LABEL).tolist() == IDS


def test_float32_probabilities_are_read_back_exactly(tmp_path):
    sample = tmp_path / "sample.csv"
    sample.write_text("id,rose,iris,lily,aster\n" + "".join(f"{i},.25,.25,.25,.25\n" for i in IDS))
    probs = np.random.default_rng(0).dirichlet(np.ones(4) * 0.05, 5).astype(np.float32)
    path = tmp_path / "out.csv"
    submission.write(np.array(IDS), probs, PROBABILITIES, sample, path)
    table = submission.read_predictions(path, PROBABILITIES)
    assert table.index.tolist() == IDS and np.array_equal(table.to_numpy().astype(np.float32), probs)


REJECTED = {
    "missing ids": (text(IDS[:3], LABELS[:3]), r"2 ids missing \('=cmd', 'i4'\)"),
    "extra ids": (text([*IDS, "x"], [*LABELS, "1"]), r"1 id too many \('x'\)"),
    "duplicate ids": (text([*IDS, "NA"], [*LABELS, "1"]), r"has 1 id more than once \('NA'\)"),
    "wrong header": (text(header="id,target"), "the columns 'id', 'target', expected 'id', 'label'"),
    "0 rows": ("id,label\n", "has 0 rows"),
    "an empty file": ("", "No columns to parse from file"),
    "Latin-1": (text(["é", *IDS[1:]]).encode("latin-1"), "can't decode byte 0xe9 in position 9"),
    "a line with too many cells": (text() + "x,1,2\n", "Expected 2 fields in line 7, saw 3"),
    "ids changed by a spreadsheet": (text(["1", "NA", "100000", "=cmd", "i4"]), r"2 ids missing \('001', '1e5'\)"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_errors_that_kaggle_would_reject_are_reported_with_their_count(tmp_path, name):
    content, message = REJECTED[name]
    path = tmp_path / "submission.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        submission.require_ids(path, submission.read_predictions(path, LABEL).index, pd.Index(IDS), "the sample")


def test_a_sample_of_other_test_images_or_columns_is_an_error(sample):
    with pytest.raises(UserError, match=r"1 id missing \('new'\), 1 id too many \('NA'\); .* if the sample is stale"):
        submission.check_sample(sample, ["001", "1e5", "=cmd", "i4", "new"], LABEL)
    sample.write_text("image_id,label\n1,0\n")
    with pytest.raises(UserError, match="the columns 'image_id', 'label', expected 'id', 'label'"):
        submission.check_sample(sample, IDS, LABEL)


NAMES = ("scab", "rust", "rot")
SETS = np.array([[1, 0, 1], [0, 1, 0]], bool)
TWO_IDS = np.array(["b", "a"])


LISTS = competition(
    NAMES, metric="multilabel_macro_f1", target="multi", prediction_columns=("labels",), label_values=("s", "r", "x"),
    label_targets=("100", "110"), list_separator=" ", allows_empty_lists=False,
)  # fmt: skip
ZERO_ONE = replace(LISTS, metric="samples_f1", prediction_columns=NAMES, label_values=NAMES, label_targets=("100",))
AGES = competition(("age",), metric="mae", target="regression", predicts="value", prediction_columns=("age",))


def sample_of_two(folder, header: str, cells: str = "0"):
    (folder / "sample.csv").write_text(f"{header}\na,{cells}\nb,{cells}\n")
    return folder / "sample.csv"


@pytest.mark.parametrize(
    ("described", "predictions", "header", "cells", "content"),
    [
        (LISTS, SETS, "id,labels", "0", b"id,labels\na,r\nb,s x\n"),
        (replace(LISTS, list_separator="|"), SETS, "id,labels", "0", b"id,labels\na,r\nb,s|x\n"),
        (ZERO_ONE, SETS, "id,scab,rust,rot", "0,0,0", b"id,scab,rust,rot\na,0,1,0\nb,1,0,1\n"),
        (AGES, np.array([[1.5], [-20.25]], np.float32), "id,age", "0", b"id,age\na,-20.25\nb,1.5\n"),
    ],
)
def test_lists_columns_of_0_and_1_and_shortest_decimals(tmp_path, described, predictions, header, cells, content):
    path = tmp_path / "out.csv"
    submission.write(TWO_IDS, predictions, described, sample_of_two(tmp_path, header, cells), path)
    assert path.read_bytes() == content


def test_an_empty_list_is_written_only_where_it_is_allowed_and_no_nan(tmp_path):
    sample, path = sample_of_two(tmp_path, "id,labels"), tmp_path / "out.csv"
    sets = np.array([[0, 0, 0], [0, 1, 0]], bool)
    submission.write(TWO_IDS, sets, replace(LISTS, allows_empty_lists=True), sample, path)
    assert path.read_bytes() == b"id,labels\na,r\nb,\n"
    with pytest.raises(UserError, match="1 row without a label: c expects one or more in every row"):
        submission.write(TWO_IDS, sets, LISTS, sample, path)
    with pytest.raises(UserError, match="1 row of value not finite"):
        submission.write(TWO_IDS, np.array([[np.nan], [1]]), AGES, sample_of_two(tmp_path, "id,age"), path)
