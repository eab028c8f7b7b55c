"""Charts of training over the epochs, all folds of a member in one picture, and where overfitting starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import pandas as pd
from markupsafe import Markup

from competition.report.svg import PLACEHOLDERS, Chart, axis_ends, chart


@dataclass(frozen=True)
class Line:
    """One quantity over the epochs, of every fold.  values: (E, K), NaN where unknown."""

    name: str
    values: np.ndarray
    colour: int  # --c0 to --c7
    dashed: bool = False


@dataclass(frozen=True)
class Overfitting:
    """best: epoch from 1 with the lowest mean held-out loss.  rise: of the last epoch over it, mean and error over folds."""

    best: int
    rise: float
    error: float
    last: int

    @property
    def is_clear(self) -> bool:
        return self.rise > 2 * self.error and self.best < self.last


def by_epoch(histories: Sequence[pd.DataFrame], column: str) -> np.ndarray:
    """(E, K) values of a column of history.csv; NaN where a fold has fewer epochs or no value."""
    epochs = max(int(history["epoch"].max()) for history in histories)
    values = np.full((epochs, len(histories)), np.nan)
    for fold, history in enumerate(histories):
        if column in history:
            values[history["epoch"].to_numpy(int) - 1, fold] = pd.to_numeric(history[column], errors="coerce")
    return values


def overfitting(held_out_loss: np.ndarray) -> Overfitting | None:
    """Where the held-out loss starts to rise; None with fewer than 2 folds or 3 epochs.  held_out_loss: (E, K)."""
    complete = held_out_loss[np.isfinite(held_out_loss).all(1)]
    if complete.shape[0] < 3 or complete.shape[1] < 2 or len(complete) < len(held_out_loss):
        return None
    best = int(complete.mean(1).argmin())
    rises = complete[-1] - complete[best]
    return Overfitting(best + 1, float(rises.mean()), float(rises.std(ddof=1) / np.sqrt(len(rises))), len(complete))


def epoch_chart(
    lines: Sequence[Line],
    title: str,
    lower_limit: float | None = None,
    mark: int | None = None,
    name: str = "",
    limits: tuple[float, float] = (-inf, inf),
) -> Markup:
    """The mean over folds of each line, thick, and every fold, thin; a cross for a single epoch.

    lower_limit: values below it are outside the axes.  mark: epoch with a vertical line.  name: of the member, for screen
    readers.  limits: of the quantity; the axis stays inside.  Empty without finite values.
    """
    lines = [line for line in lines if np.isfinite(line.values).any()]
    if not lines:
        return Markup("")
    values = np.concatenate([line.values[np.isfinite(line.values)] for line in lines])
    low, high = max(values.min(), -np.inf if lower_limit is None else lower_limit), values.max()
    with chart(320, 220, (50, 14, 22, 34)) as drawing:
        axes = drawing.axes
        axes.set_title(title)
        axes.set_xlabel("epoch" if lower_limit is None else "epoch (the lowest fifth is below)")
        axes.set_xlim(1, max(*(len(line.values) for line in lines), 2))
        axes.set_ylim(axis_ends([low, high], limits))
        drawing.ticks("y", 4)
        axes.locator_params(axis="x", nbins=6, integer=True)
        if mark is not None:
            axes.axvline(mark, color=PLACEHOLDERS["wrong"], linewidth=1.5, linestyle=(0, (2, 2)))
        ends = [f"{line.name} {_draw(drawing, line):.4g}" for line in lines]
        folds = lines[0].values.shape[1]
        what = f"{name}: {title}" if name else title
        return drawing.markup(f"{what} by epoch; at the end, mean of {folds} folds: {', '.join(ends)}")


def _draw(drawing: Chart, line: Line) -> float:
    """Draw a line and return its last mean over the folds."""
    colour, style = PLACEHOLDERS[f"c{line.colour}"], (0, (4, 2.5)) if line.dashed else "solid"
    known = np.isfinite(line.values)
    epochs = np.arange(1, len(line.values) + 1)
    for fold in range(line.values.shape[1]):
        if known[:, fold].sum() > 1:
            points = epochs[known[:, fold]], line.values[known[:, fold], fold]
            drawing.axes.plot(*points, color=colour, linewidth=0.9, alpha=0.4, linestyle=style)
    some = known.any(1)
    at, means = epochs[some], np.nanmean(line.values[some], axis=1)
    if len(at) > 1:
        (curve,) = drawing.axes.plot(at, means, color=colour, linewidth=2.2, linestyle=style)
        drawing.mark(curve, "curve", line.name)
    (end,) = drawing.axes.plot(
        at[-1], means[-1], "s" if line.dashed else "o", color=colour, markersize=6, clip_on=False
    )
    drawing.mark(end, "end", f"{line.name}: {means[-1]:.4g} after epoch {at[-1]}, mean over folds")
    return float(means[-1])
