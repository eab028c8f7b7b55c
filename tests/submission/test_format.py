from dataclasses import replace

import numpy as np
import pytest
from builders import competition

from competition.config.errors import UserError
from competition.submission import format as submission

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


def text(ids=IDS, labels=LABELS, header="id,label", end="\n") -> str:
    return header + end + "".join(f"{i},{label}{end}" for i, label in zip(ids, labels, strict=True))


def check(tmp_path, sample, content: str | bytes, index=IDS):
    path, data = tmp_path / "submission.csv", content if isinstance(content, bytes) else content.encode()
    path.write_bytes(data)
    try:
        return submission.check(path, sample, index, LABEL)
    finally:
        assert path.read_bytes() == data  # the check does not change the file


def test_a_written_file_passes_the_check_without_corrections(tmp_path, sample):
    path = tmp_path / "out.csv"
    shuffled = [4, 2, 0, 1, 3]
    ids, labels = np.array(IDS)[shuffled], np.array([3, 0, 1, 2, 3])[shuffled]
    digest = submission.write(ids, labels, LABEL, sample, path)
    assert path.read_text() == text()
    checked = submission.check(path, sample, IDS, LABEL)
    assert (checked.rows, checked.mended, checked.digest) == (5, [], digest)
    assert checked.warnings == ["1 id (=cmd) would be run as a formula by a spreadsheet; left as they are"]


def test_float32_probabilities_are_read_back_exactly(tmp_path):
    sample = tmp_path / "sample.csv"
    sample.write_text("id,rose,iris,lily,aster\n" + "".join(f"{i},.25,.25,.25,.25\n" for i in IDS))
    probs = np.random.default_rng(0).dirichlet(np.ones(4) * 0.05, 5).astype(np.float32)
    path = tmp_path / "out.csv"
    submission.write(np.array(IDS), probs, PROBABILITIES, sample, path)
    ids, cells = submission.read_predictions(path, PROBABILITIES)
    assert ids == IDS
    assert np.array_equal(np.array(cells, np.float32), probs)
    assert submission.check(path, sample, IDS, PROBABILITIES).mended == []


REJECTED = {
    "missing ids": (text(IDS[:3], LABELS[:3]), r"2 ids \(=cmd, i4\) missing"),
    "extra ids": (text([*IDS, "x"], [*LABELS, "1"]), r"1 id \(x\) too many"),
    "duplicate ids": (text([*IDS, "NA"], [*LABELS, "1"]), r"1 id \(NA\) more than once"),
    "wrong header": (text(header="id,target"), "expected 'id,label'; 1 of its columns are absent, 1 are unknown"),
    "semicolons": (text().replace(",", ";"), "not separated by commas"),
    "index column": (text([f"{n},{i}" for n, i in enumerate(IDS)], header=",id,label"), "it looks like row numbers"),
    "empty cells": (text(labels=["3", "", " ", "2", "3"]), r"empty cells in the rows of 2 ids \(NA, 1e5\)"),
    "0 rows": ("id,label\n", "holds 0 rows: expected 5"),
    "an empty file": ("", "has no header"),
    "NaN": (text(labels=["3", "nan", "1", "inf", "3"]), r"NaN or infinity in the rows of 2 ids \(NA, =cmd\)"),
    "unknown label": (text(labels=["3", "9", "9", "2", "1.5"]), r"3 labels outside the 4 .*: '9', '1.5'"),
    "UTF-16": (text().encode("utf-16"), r"is UTF-16 \(\d+ bytes\): expected UTF-8"),
    "Latin-1": (text(["é", *IDS[1:]]).encode("latin-1"), "is not UTF-8 .1 bytes, the first at byte 9"),
    "a line with too many cells": (text() + "x,1,2\n", "1 line without the 2 cells of the header: 7"),
    "ids changed by a spreadsheet": (text(["1", "NA", "100000", "=cmd", "i4"]), r"2 ids \(001, 1e5\) missing"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_errors_that_kaggle_would_reject_are_reported_with_their_count(tmp_path, sample, name):
    content, message = REJECTED[name]
    with pytest.raises(UserError, match=message):
        check(tmp_path, sample, content)


CORRECTED = {
    "other order": (text(IDS[::-1], LABELS[::-1]), "4 rows in another order"),
    "byte order mark": (b"\xef\xbb\xbf" + text().encode(), "1 byte order mark"),
    "CRLF": (text(end="\r\n"), "6 line ends CR LF"),
    "float labels": (text(labels=["3.0", "0.0", "1", "2", "3"]), "2 labels written like '3.0'"),
    "columns in another order": (text(LABELS, IDS, header="label,id"), "2 columns stood as label,id"),
}


@pytest.mark.parametrize("name", CORRECTED)
def test_deviations_that_kaggle_would_accept_are_corrected_and_reported(tmp_path, sample, name):
    content, message = CORRECTED[name]
    checked = check(tmp_path, sample, content)
    assert len(checked.mended) == 1 and message in checked.mended[0]
    assert checked.content.decode() == text()


def test_a_sample_of_other_test_images_or_columns_is_an_error_although_the_submission_matches_it(tmp_path, sample):
    with pytest.raises(
        UserError, match=r"1 id \(new\) of the test images are not in it and 1 id \(NA\) of its rows .* it is stale"
    ):
        check(tmp_path, sample, text(), index=["001", "1e5", "=cmd", "i4", "new"])
    sample.write_text("image_id,label\n1,0\n")
    with pytest.raises(UserError, match="header image_id,label, the competition expects id,label"):
        check(tmp_path, sample, text())


@pytest.mark.parametrize(
    ("sample_ids", "test_ids", "message"),
    [
        (["t1.png", "t2.png"], ["t1", "t2"], "differ in the ending of the file only, t1 is t1.png in the sample"),
        (["t1.png", "t2.png"], ["a/t1", "b/t2"], "differ in folders and the ending of the file only"),
        (["1", "2"], ["001", "002"], "differ in leading zeros only"),
    ],
)
def test_a_sample_with_other_ids_than_the_test_images_is_an_error_that_says_how_they_differ(
    tmp_path, sample_ids, test_ids, message
):
    path = tmp_path / "sample_submission.csv"
    path.write_text("id,label\n" + "".join(f"{name},0\n" for name in sample_ids))
    with pytest.raises(UserError, match=message):
        submission.check_sample(path, test_ids, LABEL)


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
    assert submission.render(TWO_IDS, predictions, described, sample_of_two(tmp_path, header, cells)) == content


def test_an_empty_list_is_written_only_where_it_is_allowed(tmp_path):
    path, sets = sample_of_two(tmp_path, "id,labels"), np.array([[0, 0, 0], [0, 1, 0]], bool)
    assert submission.render(TWO_IDS, sets, replace(LISTS, allows_empty_lists=True), path) == b"id,labels\na,r\nb,\n"
    with pytest.raises(UserError, match="1 row without a label: c expects one or more in every row"):
        submission.render(TWO_IDS, sets, LISTS, path)
    with pytest.raises(UserError, match=r"Expected \(N, C\) bool label sets"):
        submission.render(TWO_IDS, np.array([0, 1]), LISTS, path)


@pytest.mark.parametrize(
    ("described", "header", "cells", "match"),
    [
        (LISTS, "id,labels", "s y", "2 labels outside the 3 of the competition .s, r, x.: 'y'"),
        (LISTS, "id,labels", "", "no label in the rows of 2 ids .a, b.: expected one or more"),
        (ZERO_ONE, "id,scab,rust,rot", "0,0.5,1", "numbers other than 0 and 1 in the rows of 2 ids"),
        (AGES, "id,age", "old", "no number in the rows of 2 ids .a, b.: expected value"),
        (AGES, "id,age", "nan", "NaN or infinity"),
    ],
)
def test_a_file_that_kaggle_would_reject_is_answered_with_its_rows(tmp_path, described, header, cells, match):
    path = tmp_path / "s.csv"
    path.write_text(f"{header}\na,{cells}\nb,{cells}\n")
    with pytest.raises(UserError, match=match):
        submission.check(path, sample_of_two(tmp_path, header, cells), ["a", "b"], described)
