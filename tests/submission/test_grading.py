from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import competition
from sklearn.metrics import f1_score, mean_absolute_error

from competition.config.errors import UserError
from competition.ensemble.metrics import METRICS
from competition.submission import ledger
from competition.submission.compare import compare_submissions
from competition.submission.grading import grade

CLASSES = ("rose", "iris", "lily")
FLOWERS = competition(CLASSES, metric="macro_f1", label_values=("0", "1", "2"))
TRUTH = {f"i{n}": (n % 3, "Public" if n < 6 else "Private") for n in range(15)}
TRAIN_LABELS = np.array([0, 1])


@pytest.fixture
def solution_folder(tmp_path):
    rows = "".join(f"{i},{c},{u}\n" for i, (c, u) in TRUTH.items())
    (tmp_path / "solution.csv").write_text(f"id,label,usage\n{rows}")
    return tmp_path


def submission(path, labels):
    path.write_text("id,label\n" + "".join(f"{i},{label}\n" for i, label in labels.items()))
    return path


def graded_in(folder, submission, competition, train_labels=TRAIN_LABELS):
    ledger_path, metric = folder / "ledger.jsonl", METRICS[competition.metric]
    return grade(submission, folder / "solution.csv", competition, metric, train_labels, ledger_path)


def test_the_scores_of_both_parts_agree_with_scikit_learn_and_every_grading_is_counted(solution_folder):
    guesses = {i: (c + (n % 4 == 0)) % 3 for n, (i, (c, _)) in enumerate(TRUTH.items())}
    path = submission(solution_folder / "a.csv", dict(reversed(guesses.items())))  # joined by id, not by position
    graded = [graded_in(solution_folder, path, FLOWERS) for _ in range(3)][-1]
    for part, score, rows in (("Public", graded.public, 6), ("Private", graded.private, 9)):
        part_ids = [i for i, (_, usage) in TRUTH.items() if usage == part]
        truth, guessed = ([labels[i] for i in part_ids] for labels in ({i: c for i, (c, _) in TRUTH.items()}, guesses))
        expected_score = f1_score(truth, guessed, labels=range(3), average="macro", zero_division=0)
        assert (score, len(part_ids)) == (pytest.approx(expected_score, abs=1e-12), rows)
    assert (graded.public_rows, graded.private_rows, graded.solution_accesses) == (6, 9, 3)
    accesses = ledger.read(solution_folder / "ledger.jsonl").solution_accesses
    assert [(access.competition, access.file) for access in accesses] == [("c", "a.csv")] * 3


def test_a_failed_grading_is_counted_and_one_of_another_competition_is_not(solution_folder):
    ledger.append(solution_folder / "ledger.jsonl", ledger.SolutionAccess("another", "b.csv", ""))
    counts = r"solution.csv: expected the 1 id of .*a.csv, each once; 14 ids too many \('i1', "
    with pytest.raises(UserError, match=counts):
        graded_in(solution_folder, submission(solution_folder / "a.csv", {"i0": 0}), FLOWERS)
    complete = submission(solution_folder / "a.csv", {i: c for i, (c, _) in TRUTH.items()})
    assert graded_in(solution_folder, complete, FLOWERS).solution_accesses == 2


def test_a_solution_of_ones_own_may_hold_the_labels_of_the_table_and_no_usage(tmp_path):
    """Labels 1 and 7 are classes 0 and 1: a text that is a label is never taken for a class number."""
    of = competition(CLASSES[:2], id_column="image", prediction_columns=("species",), label_values=("1", "7"))
    (tmp_path / "solution.csv").write_text("image,species\nx,1\ny,7\nz,0\n")  # as in the submission
    (tmp_path / "a.csv").write_text("image,species\nx,1\ny,1\nz,1\n")
    graded = graded_in(tmp_path, tmp_path / "a.csv", of)
    assert (graded.public_rows, graded.private_rows) == (0, 3)
    assert graded.private == pytest.approx(2 / 3)  # y is an iris, z (class number 0) a rose


def test_an_auc_over_rows_of_one_class_is_undefined_and_the_other_part_has_its_score(tmp_path):
    (tmp_path / "solution.csv").write_text("id,label,usage\nw,0,Public\nx,0,Public\ny,1,Private\nz,0,Private\n")
    (tmp_path / "p.csv").write_text("id,rose,iris,lily\n" + "".join(f"{i},.8,.1,.1\n" for i in "wxyz"))
    by_auc = replace(FLOWERS, predicts="probabilities", metric="mean_column_auc", prediction_columns=CLASSES)
    graded = graded_in(tmp_path, tmp_path / "p.csv", by_auc)
    assert (graded.public, graded.public_trivial) == (None, None)
    assert (graded.private, graded.private_trivial) == (0.5, 0.5)


def test_a_wrong_solution_is_an_error(tmp_path):
    path = submission(tmp_path / "a.csv", {"x": 0})
    for solution, message in (
        ("id,answer\nx,0\n", "holds 'id', 'answer', expected the columns id, label and, optionally, usage"),
        ("id,label,answer\nx,0,0\n", "holds 'id', 'label', 'answer', expected"),
        ("id,label\nx,tulip\n", "1 row without a label of the 3 classes in column 'label', 'tulip'"),
        ("id,label\nx,0\nx,0\n", r"1 id more than once \('x'\)"),
    ):
        (tmp_path / "solution.csv").write_text(solution)
        with pytest.raises(UserError, match=message):
            graded_in(tmp_path, path, FLOWERS)


def test_two_submissions_are_compared_by_id_and_by_class(tmp_path):
    a = submission(tmp_path / "a.csv", {"x": 0, "y": 0, "z": 1, "w": 2})
    b = submission(tmp_path / "b.csv", {"w": 2, "z": 1, "y": 1, "x": 1})
    answers, _ = compare_submissions(a, b, FLOWERS)
    changed = answers[answers["a"] != answers["b"]]
    assert len(answers) == 4 and [*changed.itertuples(name=None)] == [("x", "rose", "iris"), ("y", "rose", "iris")]


def test_grades_of_label_lists_columns_of_0_and_1_and_numbers_equal_scikit_learn(tmp_path):
    rng, ids, names = np.random.default_rng(0), [f"i{n}" for n in range(30)], ("scab", "rust", "rot")
    truth, decided = rng.random((2, 30, 3)) < 0.4
    texts, guessed = ([" ".join(np.array(names)[row]) for row in sets] for sets in (truth, decided))
    ages, guesses = rng.normal(40, 9, (2, 30)).round(2)
    lists = competition(
        names, metric="multilabel_macro_f1", target="multi", label_targets=("100",), list_separator=" ", allows_empty_lists=True
    )  # fmt: skip
    columns = replace(lists, metric="samples_f1", prediction_columns=names, id_column="image")
    semicolons = [[text.replace(" ", ";") for text in lists_of] for lists_of in (texts, guessed)]
    several = replace(lists, list_separator=";")
    species = competition(names, predicts="probabilities", prediction_columns=names)
    most = truth.argmax(1)
    numbers = competition(("age",), metric="mae", target="regression", predicts="value", prediction_columns=("age",))

    def write(name: str, header: str, *cells: object) -> Path:
        lines = [",".join(map(str, row)) for row in zip(ids, *cells)]
        (tmp_path / name).write_text("\n".join([header, *lines]) + "\n")
        return tmp_path / name

    for of, solution, submitted, score in (
        (lists, [texts], [guessed], lambda rows: f1_score(truth[rows], decided[rows], average="macro", zero_division=0)),
        (several, [semicolons[0]], [semicolons[1]], lambda rows: f1_score(truth[rows], decided[rows], average="macro", zero_division=0)),
        (columns, [texts], decided.astype(int).T, lambda rows: f1_score(truth[rows], decided[rows], average="samples", zero_division=0)),
        (species, [[names[n] for n in most]], decided.T * 0.5, lambda rows: (most[rows] == decided[rows].argmax(1)).mean()),
        (numbers, [ages], [guesses], lambda rows: mean_absolute_error(ages[rows], guesses[rows])),
    ):  # fmt: skip
        header = ",".join([of.id_column, *of.prediction_columns])
        write("solution.csv", "id,label,usage", *solution, ["Public"] * 12 + ["Private"] * 18)
        train_labels = np.array([20.0, 31.0, 90.0]) if of is numbers else truth[:3] if of.target == "multi" else most
        graded = graded_in(tmp_path, write("s.csv", header, *submitted), of, train_labels)
        assert graded.public == pytest.approx(score(slice(12)), abs=1e-12)
        assert graded.private == pytest.approx(score(slice(12, 30)), abs=1e-12)
    assert graded.private_trivial == pytest.approx(np.abs(ages[12:] - 31).mean())  # the median of the training rows
