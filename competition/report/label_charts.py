"""Charts of a multi-label competition: precision against recall, and F1 against the threshold, of the labels with the lowest F1."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from competition.report.charts import legend
from competition.report.page import Charts
from competition.report.svg import NORMAL, PLACEHOLDERS, Chart, chart, shortened

SHOWN = 6  # labels with curves
POINTS = 150  # of a curve
NOTE = (
    "Precision: the share of the rows predicted to have the label that have it; recall: the share of the rows with the label that are "
    "predicted to have it; F1: their harmonic mean. Each curve is of one label at every threshold; dots: the predictions of the blend, "
    "whose thresholds were chosen without the row's fold. Diamonds: the highest F1 of these rows, which is optimistic."
)


class LabelCurve(NamedTuple):
    """At each of S thresholds, the highest first: a row has the label if its score is not below."""

    thresholds: np.ndarray  # (S,)
    precision: np.ndarray
    recall: np.ndarray

    @property
    def f1(self) -> np.ndarray:
        return 2 * self.precision * self.recall / np.maximum(self.precision + self.recall, 1e-12)


def label_curve(positive: np.ndarray, scores: np.ndarray) -> LabelCurve:
    """Precision and recall at every distinct score.  positive: (N,) bool, some True.  scores: (N,)."""
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], positive[order].cumsum()
    last = np.flatnonzero(
        np.r_[scores[1:] != scores[:-1], True]
    )  # rows of equal scores are above the threshold together
    return LabelCurve(scores[last], hits[last] / (last + 1), hits[last] / hits[-1])


def label_charts(
    targets: np.ndarray, decided: np.ndarray, scores: np.ndarray, names: Sequence[str], worst: Sequence[int]
) -> Charts | None:
    """Curves of the first of the labels that some row has, and some has not; None if there is none.

    targets, decided: (N, C) bool.  scores: (N, C).  worst: numbers of all labels, the lowest F1 first.
    """
    shown = [c for c in worst if 0 < targets[:, c].sum() < len(targets)][:SHOWN]
    if not shown:
        return None
    curves = [label_curve(targets[:, c], scores[:, c]) for c in shown]
    at = [decided_point(targets[:, c], decided[:, c]) for c in shown]
    titles = [shortened(names[c], 24) for c in shown]
    drawings = [legend(titles), recall_chart(curves, at, titles), threshold_chart(curves, titles)]
    many = f" Of {len(names)} labels the {len(shown)} with the lowest F1." if len(shown) < len(names) else ""
    return Charts(drawings, NOTE + many, "Precision, recall and thresholds")


def label_bars(names: Sequence[str], f1: np.ndarray) -> Markup:
    """F1 of labels, one bar each, from the top."""
    names = [shortened(name, 18) for name in names]
    with chart(310, 46 + 24 * len(names), (130, 44, 22, 14)) as drawing:
        axes = drawing.axes
        axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), title="F1 of the labels", xticks=[])
        axes.set_yticks(range(len(names)), names, size=NORMAL)
        axes.tick_params(axis="y", pad=8, labelcolor=PLACEHOLDERS["ink"])
        for row, (bar, name, value) in enumerate(zip(axes.barh(range(len(names)), f1, 0.6), names, f1, strict=True)):
            bar.set_color(PLACEHOLDERS["c0"])
            drawing.mark(bar, "bar", f"{name}: F1 {value:.4f}")
            axes.text(value + 0.03, row, f"{value:.2f}", va="center", size=NORMAL)
        return drawing.markup(
            f"F1 of labels: {'; '.join(f'{name} {one:.4f}' for name, one in zip(names, f1, strict=True))}"
        )


def decided_point(positive: np.ndarray, decided: np.ndarray) -> tuple[float, float]:
    """(precision, recall) of the predictions.  positive, decided: (N,) bool."""
    hits = float((positive & decided).sum())
    return hits / max(int(decided.sum()), 1), hits / int(positive.sum())


def recall_chart(curves: Sequence[LabelCurve], at: Sequence[tuple[float, float]], names: Sequence[str]) -> Markup:
    """Precision against recall.  at: (precision, recall) of the predictions."""
    with chart(372, 330, (46, 14, 22, 44)) as drawing:
        axes = drawing.axes
        axes.set(xlim=(0, 1), ylim=(0, 1.02), title="precision", xlabel="recall")
        for number, (curve, (precision, recall), name) in enumerate(zip(curves, at, names, strict=True)):
            _line(drawing, number, curve.recall, curve.precision, name)
            text = f"{name}: precision {precision:.3f}, recall {recall:.3f}"
            _mark(drawing, number, recall, precision, "o", text)
        listed = "; ".join(f"{name} {p:.3f}, {r:.3f}" for (p, r), name in zip(at, names, strict=True))
        return drawing.markup(f"precision against recall; of the predictions: {listed}")


def threshold_chart(curves: Sequence[LabelCurve], names: Sequence[str]) -> Markup:
    """F1 against the threshold, with the highest of each label."""
    with chart(372, 330, (46, 14, 22, 44)) as drawing:
        axes, listed = drawing.axes, []
        axes.set(xlim=(0, 1), ylim=(0, 1.02), title="F1", xlabel="threshold of the label's score")
        for number, (curve, name) in enumerate(zip(curves, names, strict=True)):
            _line(drawing, number, curve.thresholds, curve.f1, name)
            best = int(curve.f1.argmax())
            listed.append(f"{name}: highest F1 {curve.f1[best]:.3f} at threshold {curve.thresholds[best]:.3f}")
            _mark(drawing, number, curve.thresholds[best], curve.f1[best], "D", listed[-1])
        return drawing.markup(f"F1 against the threshold; {'; '.join(listed)}")


def _line(drawing: Chart, number: int, x: np.ndarray, y: np.ndarray, name: str) -> None:
    """One curve, at evenly chosen points; every second one is dashed, as in `charts.legend`."""
    drawing.ticks("x", 5)
    drawing.ticks("y", 5)
    kept = np.unique(np.linspace(0, len(x) - 1, min(POINTS, len(x))).astype(int))
    style = (0, (4, 2.5)) if number % 2 else "solid"
    (line,) = drawing.axes.plot(
        x[kept], y[kept], color=PLACEHOLDERS[f"c{number}"], linewidth=1.8, linestyle=style, alpha=0.85
    )
    drawing.mark(line, "curve", name)


def _mark(drawing: Chart, number: int, x: float, y: float, marker: str, tooltip: str) -> None:
    (dot,) = drawing.axes.plot(x, y, marker, color=PLACEHOLDERS[f"c{number}"], markersize=8, clip_on=False, zorder=3)
    dot.set(markeredgecolor=PLACEHOLDERS["card"], markeredgewidth=1.5)
    drawing.mark(dot, "dot", tooltip)
