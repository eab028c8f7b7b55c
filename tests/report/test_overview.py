"""The first screen of the report: one sentence, a small matrix, the worst classes."""

import numpy as np
import pytest

from competition.report.overview import small_matrix, verdict

GAIN = {"value": 0.8, "error": 0.01, "low": 0.78, "high": 0.82, "changed": 90, "corrected": 85, "corrupted": 5}
SCORES = {
    "metric": "macro_f1",
    "honest": 0.9,
    "standard_error": 0.01,
    "trivial": {"name": "classes drawn at random", "score": 0.1, "standard_error": 0.01},
    "over_trivial": GAIN,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "on rows that took no part in any choice; an answer that looks at no image scores 0.1000"),
        ({"optimistic": True}, "is optimistic: every row took part in choosing the hyperparameters"),
        (
            {"notes": ["torch: folds unknown: it cannot"]},
            "may be optimistic: folds of torch unknown. An answer that looks",
        ),
        (
            {"notes": ["a: other folds than ours (", "b: other folds than ours ("]},
            "may be optimistic: folds of a, b not those of the scored rows.",
        ),
        ({"over_trivial": GAIN | {"value": 0.0}}, "not better than an answer that looks at no image"),
    ],
)
def test_the_verdict_is_one_sentence_that_says_what_the_score_is_worth(changes: dict, words: str) -> None:
    sentence = verdict(SCORES | changes)
    assert sentence.startswith("macro_f1 0.9000 ± 0.0100") and words in sentence


def test_of_many_classes_the_matrix_shows_those_with_the_most_confusions_in_their_order() -> None:
    names, table = [f"c{n:03}" for n in range(40)], np.diag(np.full(40, 50))
    table[30, 7], table[5, 6] = 9, 8
    charts = small_matrix(table, names)
    drawing = str(charts.drawings[0])
    assert "matrix of 12 classes" in drawing and "Of 40 classes the 12 with the most confusions" in charts.note
    assert "c030 predicted as c007: 9 of 59 rows wrong" in drawing and drawing.index(">c005<") < drawing.index(">c030<")
