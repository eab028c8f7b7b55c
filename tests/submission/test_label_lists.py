"""Submissions of label lists, of columns of 0 and 1, and of numbers: written, checked, graded and compared."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score, mean_absolute_error

from competition.config.errors import UserError
from competition.prepare.adapter_types import Competition
from competition.submission.format import check, render
from competition.submission.grading import grade

NAMES = ("scab", "rust", "rot")
SETS = np.array([[1, 0, 1], [0, 1, 0]], bool)
IDS = np.array(["b", "a"])


def lists(separator: str = " ", empty: bool = False) -> Competition:
    return Competition(
        "f", "", NAMES, "multilabel_macro_f1", "label", "id", ("labels",), ("s", "r", "x"), (), "multi",
        ("100", "110"), separator, empty,
    )  # fmt: skip


ZERO_ONE = Competition("f", "", NAMES, "samples_f1", "label", "id", NAMES, NAMES, (), "multi", ("100",))
VALUES = Competition("f", "", ("age",), "mae", "value", "id", ("age",), ("age",), (), "regression", ("1.0", "2.0"))


def sample(folder: Path, header: str, cells: str = "0") -> Path:
    (folder / "sample.csv").write_text(f"{header}\na,{cells}\nb,{cells}\n")
    return folder / "sample.csv"


@pytest.mark.parametrize(
    ("competition", "predictions", "header", "cells", "content"),
    [
        (lists(), SETS, "id,labels", "0", b"id,labels\na,r\nb,s x\n"),
        (lists("|"), SETS, "id,labels", "0", b"id,labels\na,r\nb,s|x\n"),
        (ZERO_ONE, SETS, "id,scab,rust,rot", "0,0,0", b"id,scab,rust,rot\na,0,1,0\nb,1,0,1\n"),
        (VALUES, np.array([[1.5], [-20.25]], np.float32), "id,age", "0", b"id,age\na,-20.25\nb,1.5\n"),
    ],
)
def test_lists_columns_of_0_and_1_and_shortest_decimals(tmp_path, competition, predictions, header, cells, content):
    assert render(IDS, predictions, competition, sample(tmp_path, header, cells)) == content


def test_an_empty_list_is_written_only_where_it_is_allowed(tmp_path):
    path, sets = sample(tmp_path, "id,labels"), np.array([[0, 0, 0], [0, 1, 0]], bool)
    assert render(IDS, sets, lists(empty=True), path) == b"id,labels\na,r\nb,\n"
    with pytest.raises(UserError, match="1 row without a label: f expects one or more in every row"):
        render(IDS, sets, lists(), path)
    with pytest.raises(UserError, match=r"Expected \(N, C\) bool label sets"):
        render(IDS, np.array([0, 1]), lists(), path)


@pytest.mark.parametrize(
    ("competition", "header", "cells", "match"),
    [
        (lists(), "id,labels", "s y", "2 labels outside the 3 of the competition .s, r, x.: 'y'"),
        (lists(), "id,labels", "", "no label in the rows of 2 ids .a, b.: expected one or more"),
        (ZERO_ONE, "id,scab,rust,rot", "0,0.5,1", "numbers other than 0 and 1 in the rows of 2 ids"),
        (VALUES, "id,age", "old", "no number in the rows of 2 ids .a, b.: expected value"),
        (VALUES, "id,age", "nan", "NaN or infinity"),
    ],
)
def test_a_file_that_kaggle_would_reject_is_answered_with_its_rows(tmp_path, competition, header, cells, match):
    path = tmp_path / "s.csv"
    path.write_text(f"{header}\na,{cells}\nb,{cells}\n")
    with pytest.raises(UserError, match=match):
        check(path, sample(tmp_path, header, cells), ["a", "b"], competition)


def test_local_grades_equal_scikit_learn(tmp_path):
    rng = np.random.default_rng(0)
    ids = [f"i{n}" for n in range(30)]
    truth, decided = rng.random((30, 3)) < 0.4, rng.random((30, 3)) < 0.4
    values = np.array(["s", "r", "x"])
    texts = [[" ".join(values[row]) for row in sets] for sets in (truth, decided)]
    parts = ["Public" if n < 12 else "Private" for n in range(30)]

    def write(name: str, header: str, *columns: object) -> Path:
        lines = [",".join(map(str, row)) for row in zip(ids, *columns)]
        (tmp_path / name).write_text("\n".join([header, *lines]) + "\n")
        return tmp_path / name

    solution = write("solution.csv", "id,label,usage", texts[0], parts)
    submission = write("s.csv", "id,labels", texts[1])
    score = grade(submission, solution, lists(empty=True), tmp_path / "l.jsonl")
    expected = f1_score(truth[:12], decided[:12], average="macro", zero_division=0)
    assert score.public == pytest.approx(expected, abs=1e-12)
    columns = write("c.csv", "id,scab,rust,rot", *decided.astype(int).T)
    named = write("solution.csv", "id,label,usage", [" ".join(np.array(NAMES)[row]) for row in truth], parts)
    score = grade(columns, named, ZERO_ONE, tmp_path / "l.jsonl")
    expected = f1_score(truth[12:], decided[12:], average="samples", zero_division=0)
    assert score.private == pytest.approx(expected, abs=1e-12)
    ages, guesses = rng.normal(40, 9, (2, 30)).round(2)
    solution = write("solution.csv", "id,label,usage", ages, parts)
    score = grade(write("v.csv", "id,age", guesses), solution, VALUES, tmp_path / "l.jsonl")
    assert score.public == pytest.approx(mean_absolute_error(ages[:12], guesses[:12]), abs=1e-12)
