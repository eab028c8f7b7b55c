"""F1 of the classes against their training rows."""

import re

import numpy as np

from competition.report.classes import class_size_blocks, rare_note
from competition.report.mistakes import class_scores
from competition.report.page import Charts, Text

NAMES = [f"kind {n:02}" for n in range(12)]


def table_of(rows: np.ndarray, wrong: dict[int, int]) -> np.ndarray:
    """(C, C) confusions: `wrong[c]` rows of class c are taken for class 0."""
    table = np.diag(rows)
    for number, count in wrong.items():
        table[number, number] -= count
        table[number, 0] += count
    return table


def test_the_chart_names_the_worst_class_and_every_point_its_own() -> None:
    rows = np.array([500, *range(10, 120, 10)])
    scores = class_scores(table_of(rows, {4: 38, 7: 3}))
    (charts,) = class_size_blocks(scores, rows, NAMES)
    assert isinstance(charts, Charts)
    (drawing,) = charts.drawings
    assert NAMES[scores[0].number] == "kind 04" and re.search(r"<text[^>]*>kind 04</text>", drawing)
    assert not re.search(r"<text[^>]*>kind 09</text>", drawing)  # has an F1 of 1
    titles = re.findall(r"<title>(kind \d\d): F1 [\d.]+, [\d,]+ training rows</title>", drawing)
    assert sorted(titles) == NAMES


def test_few_classes_have_no_chart_and_equally_large_ones_one_sentence() -> None:
    rows = np.arange(10, 100, 10)
    assert class_size_blocks(class_scores(np.diag(rows)), rows, NAMES[:9]) == []
    even = np.full(12, 100)
    (text,) = class_size_blocks(class_scores(np.diag(even)), even, NAMES)
    assert isinstance(text, Text) and "about equally many training rows (100 to 100)" in text.lines[0]


def test_rare_classes_are_called_worse_only_beyond_noise() -> None:
    rows, rng = np.geomspace(5, 500, 30).astype(int), np.random.default_rng(0)
    rising = np.linspace(0.5, 0.95, 30) + rng.normal(0, 0.02, 30)
    assert "rare classes are worse: mean F1 0.5" in rare_note(rising, rows)
    assert re.match(r"Rank correlation of rows and F1 \+0\.9\d;", rare_note(rising, rows))
    assert "rare classes are better" in rare_note(rising[::-1], rows)
    assert "not worse beyond noise" in rare_note(rng.uniform(0.4, 0.9, 30), rows)
    assert "+0.00; rare classes are not worse beyond noise" in rare_note(np.ones(30), rows)
