"""The report's section on training: scores and learning curves of the fold models."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import numpy as np
from markupsafe import Markup

from competition.config.params import Params
from competition.ensemble.metrics import score_range
from competition.files.manifest import read_manifest
from competition.prepare.prepared import Prepared
from competition.report.charts import legend
from competition.report.page import Block, Charts, Section, Table, Text
from competition.report.svg import DASHED, DOTTED, Chart, Ends, axis_ends, shortened
from competition.report.terminal import TUNED, number, seeds_line
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import Run
from competition.workspace.scores import held_out_score, trivial_score_of_folds

MAX_CURVES = 4  # members with learning curves; the others are in the table only
CURVES_NOTE = (
    "Thick: mean of the folds; thin: each of them. The training loss is the mean over an epoch, of images and labels as they are trained "
    "on (augmented, mixed, smoothed); a held-out loss is of plain ones at the end of the epoch. Compare their course and not their level."
)

# epoch, loss, learning_rate, held_out, inner, held_out_loss -> (E,) float, NaN = unknown
History = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TrainedFold:
    """A finished fold model.  held_out: score on its held-out rows."""

    fold: int
    held_out: float
    history: History


@dataclass(frozen=True)
class Overfitting:
    """best: epoch from 1 with the lowest mean held-out loss.

    rise, error: of the loss from there to the last epoch, mean and standard error over folds.
    """

    best: int
    rise: float
    error: float
    last: int
    is_clear: bool


def trained(run: Run, prepared: Prepared, folds: int) -> list[TrainedFold]:
    """The finished fold models of a run."""
    models = []
    for fold in range(folds):
        path = fold_manifest_path(run, fold)
        history = path.with_name("history.csv")
        if read_manifest(path) is not None and path.with_name("weights.npz").is_file() and history.is_file():
            models.append(TrainedFold(fold, held_out_score(prepared, run, fold), read_history(history)))
    return models


def read_history(path: Path) -> History:
    """The columns of a history.csv. By pandas a hundred of them would take a tenth of the time of the report."""
    with path.open(encoding="utf-8", newline="") as file:
        epochs = list(csv.DictReader(file))
    keys = epochs[0] if epochs else ()
    return {key: np.array([epoch[key] or nan for epoch in epochs], float) for key in keys}


def members_section(
    runs: Mapping[str, Run],
    models_of: Mapping[str, Sequence[TrainedFold]],
    params: Params,
    prepared: Prepared,
    spreads: Mapping[str, float],
) -> Section | None:
    """None before any fold model is trained.

    runs: by title, those of the current parameters.  models_of: their finished fold models.
    spreads: member -> standard deviation of its mean score over its training seeds, for members with a current seed study.
    """
    folds, metric = params.prepare.folds, prepared.competition.metric
    models_of = {title: models for title, models in models_of.items() if models}
    if not models_of:
        return None
    trivial = [trivial_score_of_folds(prepared, [fold]) for fold in range(folds)]
    tuned_folds = {title: runs[title].depends["tuned_folds"] for title in models_of}
    blocks: list[Block] = [scores_table(models_of, tuned_folds, trivial, metric)]
    blocks += [Text([line.strip()]) for line in seeds_line(spreads, params.members)]
    missing = {name: folds - len(models_of.get(name, [])) for name in runs}
    if incomplete := [f"{name} ({count})" for name, count in missing.items() if count]:
        blocks.append(Text([f"Fold models not trained yet: {', '.join(incomplete)}. Run `make train`."], True))
    shown = list(models_of.items())[:MAX_CURVES]
    if curves := [chart for name, models in shown for chart in curve_charts(name, models, metric)]:
        blocks += [Text([CURVES_NOTE], name="Learning curves"), *curves]
    sources = "members/<member>/<run>/fold<k>/manifest.json, history.csv · make train"
    return Section("members", "Members", sources, blocks)


def scores_table(
    models_of: Mapping[str, Sequence[TrainedFold]],
    tuned_folds: Mapping[str, Sequence[int]],
    trivial: Sequence[tuple[str, float]],
    metric: str,
) -> Table:
    """Held-out scores of all fold models; those of folds that chose the member's hyperparameters are marked.

    tuned_folds: title -> these folds.  trivial: of every fold, what the trivial baseline answers and its score.
    """
    held_out = {name: {model.fold: model.held_out for model in models} for name, models in models_of.items()}
    held_out["trivial baseline"] = {fold: score for fold, (_, score) in enumerate(trivial)}
    rows = []
    for name, scores in held_out.items():
        tuned = {*tuned_folds.get(name, ())} & scores.keys()
        part = f" ({len(scores)} of {len(trivial)} folds)" if len(scores) < len(trivial) else ""
        mean = f"{number(float(np.mean([*scores.values()])))}{TUNED * bool(tuned)}{part}"
        of_folds = [f"{number(scores[n])}{TUNED * (n in tuned)}" if n in scores else "–" for n in range(len(trivial))]
        rows.append([name, mean, *of_folds])
    note = (
        "Identity view; each column is of other rows, the held-out ones of its fold, so columns compare members and not folds. "
        f"Trivial baseline: {trivial[0][0]}, which looks at no row; its mean is of folds, too, not of all rows together."
    )
    if any(tuned_folds.values()):
        note += (
            f"{TUNED} The rows of that fold, or some rows of the mean, chose hyperparameters of the member: optimistic."
        )
    columns = ["member", f"mean of the folds' {metric}", *(f"fold {n}" for n in range(len(trivial)))]
    return Table(columns, rows, note=note, title="Held-out scores of the fold models")


def curve_charts(name: str, models: Sequence[TrainedFold], metric: str) -> list[Charts]:
    """Training of a member over the epochs: losses in one picture, the metric in another; all folds together.

    one `Charts`; [] of a head, or with fewer than two epochs.
    """
    histories = [model.history for model in models]
    scores, held_out, losses = (by_epoch(histories, column) for column in ("held_out", "held_out_loss", "loss"))
    if len(scores) < 2:
        return []
    has_losses, has_scores = (int(np.isfinite(values).any(1).sum()) > 1 for values in (held_out, scores))
    overfit = overfitting(held_out)
    mark = overfit.best if overfit is not None and overfit.is_clear else None
    drawings = [legend(["training", "held-out"])] if has_losses or has_scores else []
    if np.isfinite(losses).any():
        lines = {"training loss": losses} | ({"held-out loss": held_out} if has_losses else {})
        drawings.append(epoch_chart(name, lines, (0.0, inf), mark))
    if has_scores:
        lines = {shortened(f"held-out {metric}", 40): scores}
        drawings.append(epoch_chart(name, lines, score_range(metric), mark))
    note = (
        "No held-out curves, and whether it overfits is unknown: the held-out rows were scored once, after training; "
        "`device.score_epochs: 6` scores them after six epochs."
    )
    if has_losses or has_scores:
        note = overfitting_text(overfit)
    return [Charts(drawings, note, name)]


def overfitting_text(start: Overfitting | None) -> str:
    """Where the held-out loss starts to rise."""
    if start is None:
        return "Whether it overfits is unknown: that needs the held-out loss of 2 folds after 3 epochs (device.score_epochs)."
    rise = f"{start.rise:+.4f} ± {start.error:.4f} (over folds)"
    if start.is_clear:
        after = f"epoch {start.best} of {start.last} (vertical line)"
        return f"Overfitting starts after {after}: by the end the held-out loss rises by {rise}."
    if start.best == start.last:
        return "No overfitting: the held-out loss is lowest after the last epoch."
    return f"No clear overfitting: the held-out loss is lowest after epoch {start.best} of {start.last}, and {rise} at the end."


def by_epoch(histories: Sequence[History], column: str) -> np.ndarray:
    """(E, K) values of a column of history.csv; NaN where a fold has fewer epochs or no value."""
    epochs = max(int(history["epoch"].max()) for history in histories)
    values = np.full((epochs, len(histories)), np.nan)
    for fold, history in enumerate(histories):
        if column in history:
            values[history["epoch"].astype(int) - 1, fold] = history[column]
    return values


def overfitting(held_out_loss: np.ndarray) -> Overfitting | None:
    """Where the held-out loss starts to rise; None with fewer than 2 folds or 3 scored epochs, or without a score of the last.

    held_out_loss: (E, K).
    """
    epochs, folds = held_out_loss.shape
    scored = np.flatnonzero(np.isfinite(held_out_loss).all(1))
    if len(scored) < 3 or folds < 2 or scored[-1] < epochs - 1:
        return None
    best = int(scored[held_out_loss[scored].mean(1).argmin()])
    rises = held_out_loss[-1] - held_out_loss[best]
    rise, error = float(rises.mean()), float(rises.std(ddof=1) / np.sqrt(folds))
    return Overfitting(best + 1, rise, error, epochs, rise > 2 * error and best + 1 < epochs)


def epoch_chart(member: str, lines: Mapping[str, np.ndarray], limits: Ends, mark: int | None) -> Markup:
    """The mean over folds of each line, thick, and every fold, thin; a dot at the end.  Held-out lines are dashed.

    lines: name -> (E, K), NaN where unknown.  limits: of what they measure.  mark: epoch with a vertical line.
    """
    title, at_end = " and ".join(lines), []
    last = max(*(len(line) for line in lines.values()), 2)
    ends = axis_ends(np.concatenate([line[np.isfinite(line)] for line in lines.values()]).tolist(), limits)
    drawing = Chart((320, 220), (50, 14, 22, 34), (1, last), ends)
    drawing.axes(x=min(6, last - 1), y=4, title=title, across="epoch")
    if mark is not None:
        drawing.line([mark, mark], ends, "wrong", stroke_width=1.5, stroke_dasharray=DOTTED)
    for name, line in lines.items():
        known, epochs = np.isfinite(line), np.arange(1, len(line) + 1)
        colour, dashes = ("c1", {"stroke_dasharray": DASHED}) if name.startswith("held-out") else ("c0", {})
        for fold in np.flatnonzero(known.sum(0) > 1):
            x, y = epochs[known[:, fold]], line[known[:, fold], fold]
            drawing.line(x, y, colour, opacity=0.4, **dashes)
        at, means = epochs[known.any(1)], np.nanmean(line[known.any(1)], axis=1)
        drawing.line(at, means, colour, "curve", name, stroke_width=2.2, **dashes)
        tooltip = f"{name}: {means[-1]:.4g} after epoch {at[-1]}, mean over folds"
        drawing.dots(at[-1], means[-1], colour, "end", [tooltip], r=3.0)
        at_end.append(f"{name} {means[-1]:.4g}")
    return drawing.markup(f"{member}: {title} by epoch; at the end, mean over folds: {', '.join(at_end)}")
