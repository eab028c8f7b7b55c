"""F1 of the classes against their training rows."""

import re

import numpy as np

from competition.report.classes import class_size_blocks, rare_note
from competition.report.mistakes import ClassScore, class_scores
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


def test_the_worst_class_is_named_where_its_name_fits_nowhere() -> None:
    rows = np.tile(np.geomspace(10, 100, 20).astype(int), 2)
    names = [f"a long name of {n:02}" for n in range(40)]
    scores = [ClassScore(n, int(rows[n]), 0.0 if n < 20 else 0.04, 0.0, 0.0, -1, 0) for n in range(40)]
    (charts,) = class_size_blocks([scores[10], *scores[:10], *scores[11:]], rows, names)
    assert isinstance(charts, Charts)
    assert re.findall(r"<text[^>]*>(a long[^<]*)</text>", charts.drawings[0]) == [names[10]]


def test_a_log_axis_has_a_place_for_a_class_without_rows() -> None:
    rows = np.array([0, *range(10, 120, 10)])
    (charts,) = class_size_blocks(class_scores(table_of(rows, {})), rows, NAMES)
    assert "kind 00: F1 0.000, 0 training rows" in charts.drawings[0]


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
