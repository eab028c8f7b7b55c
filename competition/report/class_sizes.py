"""The report's chart of each class's F1 against its number of training rows: are rare classes worse?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from competition.report.charts import label_offsets
from competition.report.mistakes import ClassScore
from competition.report.page import Block, Charts, Text
from competition.report.svg import PLACEHOLDERS, SMALL, PointMark, chart, shortened

FEWEST_CLASSES, NAMED = 10, 5
EVEN = 1.5  # the largest class has at most this many times the rows of the smallest: size explains nothing
TITLE = "F1 and number of rows"


def class_size_blocks(scores: Sequence[ClassScore], train_rows: np.ndarray, names: Sequence[str]) -> list[Block]:
    """The chart with one sentence; the sentence alone if the classes have about equally many rows; [] for few classes.

    scores: of `class_scores`, the worst first.  train_rows: (C,) int, training rows of each class.
    """
    if len(names) < FEWEST_CLASSES:
        return []
    fewest, most = int(train_rows.min()), int(train_rows.max())
    if most <= EVEN * fewest:
        text = f"The classes have about equally many training rows ({fewest:,} to {most:,}), so none is worse because it is rare."
        return [Text([text], name=TITLE)]
    f1 = np.empty(len(names))
    f1[[score.number for score in scores]] = [score.f1 for score in scores]
    return [Charts([class_size_chart(scores, train_rows, names)], rare_note(f1, train_rows), TITLE)]


def rare_note(f1: np.ndarray, train_rows: np.ndarray) -> str:
    """One sentence: the rank correlation of rows and F1, and whether rare classes are worse.  f1, train_rows: (C,)."""
    f1_ranks, row_ranks = (pd.Series(values).rank().to_numpy() for values in (f1, train_rows))
    correlation = float(np.corrcoef(f1_ranks, row_ranks)[0, 1]) if np.ptp(f1) > 0 else 0.0
    by_rows = np.array_split(np.argsort(train_rows, kind="stable"), 3)
    rare, frequent = f1[by_rows[0]], f1[by_rows[2]]
    errors = [float(part.std(ddof=1) / np.sqrt(len(part))) for part in (rare, frequent)]
    difference = float(frequent.mean() - rare.mean())
    verdict = "rare classes are worse" if difference > 0 else "rare classes are better"
    if abs(difference) <= 2 * sum(error**2 for error in errors) ** 0.5:
        verdict = "rare classes are not worse beyond noise"
    means = [f"{part.mean():.3f} ± {error:.3f}" for part, error in zip((rare, frequent), errors, strict=True)]
    return (
        f"Rank correlation of rows and F1 {correlation:+.2f}; {verdict}: mean F1 {means[0]} in the third of the classes with the fewest "
        f"rows, {means[1]} in the third with the most."
    )


def class_size_chart(scores: Sequence[ClassScore], train_rows: np.ndarray, names: Sequence[str]) -> Markup:
    """F1 of every class against its training rows, on a logarithmic axis; the worst classes are named.

    scores: of `class_scores`, the worst first.  train_rows: (C,) int; a class without rows stands at half a row.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    left, right, width = 46, 14, 460
    x = np.maximum(train_rows[[score.number for score in scores]], 0.5)
    y = np.array([score.f1 for score in scores])
    worst = sum(score.f1 < 1 for score in scores[:NAMED])
    marks = [PointMark(f"{names[s.number]}: F1 {s.f1:.3f}, {train_rows[s.number]:,} training rows") for s in scores]
    with chart(width, 330, (left, right, 22, 44)) as drawing:
        axes = drawing.axes
        axes.set_xscale("log")
        axes.set(xlim=(x.min() / 1.15, x.max() * 1.15), ylim=(y.min() - 0.1, 1.03))
        axes.set(title="F1 on scored rows", xlabel="training rows of the class (logarithmic)")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rows, _: f"{rows:,.0f}" if rows >= 1 else f"{rows:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x")
        drawing.ticks("y", 5)
        style = {"marker": "o", "markersize": 7, "markeredgewidth": 0, "alpha": 0.7}
        drawing.mark_points(x[worst:], y[worst:], marks[worst:], {**style, "color": PLACEHOLDERS["c0"]})
        drawing.mark_points(x[:worst], y[:worst], marks[:worst], {**style, "color": PLACEHOLDERS["wrong"]})
        places = axes.transData.transform(np.column_stack([x, y])) * 72 / drawing.figure.dpi
        texts = [shortened(names[score.number], 18) for score in scores[:worst]]
        offsets = label_offsets(places, [7.0 * len(text) for text in texts], (left, width - 4))
        for n, (text, offset) in enumerate(zip(texts, offsets, strict=True)):
            if offset is not None or n == 0:  # the worst class is named in any case
                axes.annotate(text, (x[n], y[n]), offset or (6.0, 5.0), textcoords="offset points", size=SMALL)
        listed = "; ".join(mark.tooltip for mark in marks[:worst])
        return drawing.markup(f"F1 of {len(names)} classes by training rows; the lowest: {listed}")
