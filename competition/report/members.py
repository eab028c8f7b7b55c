"""The report's section on training: scores, learning curves and training times of the fold models."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.artifacts.dependencies import fold_model_path, views_manifest
from competition.artifacts.manifest import Manifest, read_manifest
from competition.artifacts.runs import Run
from competition.artifacts.scores import held_out_score
from competition.artifacts.studies import used_study
from competition.config.params import Params
from competition.data.prepared import Prepared
from competition.report.charts import legend
from competition.report.page import Block, Charts, Section, Table, Text
from competition.report.training_charts import Line, Overfitting, by_epoch, epoch_chart, overfitting
from competition.tuning.choice import format_values

MAX_CURVES = 12  # members with learning curves; the others are in the table only


@dataclass(frozen=True)
class FoldModel:
    """A trained fold model."""

    fold: int
    manifest: Manifest
    held_out: float  # score on its held-out rows
    history: pd.DataFrame  # epoch, loss, learning_rate, held_out, inner, held_out_loss (absent in older ones)
    megabytes: float  # of the weights


def trained(run: Run, prepared: Prepared, folds: int) -> list[FoldModel]:
    """The finished fold models of a run."""
    models = []
    for fold in range(folds):
        path = fold_model_path(run, fold)
        manifest = read_manifest(path)
        weights, history = path.with_name("weights.npz"), path.with_name("history.csv")
        if manifest is not None and weights.is_file() and history.is_file():
            score = held_out_score(prepared, run, fold)
            models.append(FoldModel(fold, manifest, score, pd.read_csv(history), weights.stat().st_size / 1e6))
    return models


def members_section(
    runs: Mapping[str, Run],
    models_of: Mapping[str, Sequence[FoldModel]],
    params: Params,
    work: Path,
    prepared: Prepared,
    spreads: Mapping[str, float],
) -> Section | None:
    """None before any fold model is trained.

    runs: by title, those of the current parameters.  models_of: their finished fold models.
    spreads: member -> standard deviation of its score over training seeds, for members with a current seed study.
    """
    folds, metric = params.prepare.folds, prepared.competition.metric
    models_of = {title: models for title, models in models_of.items() if models}
    if not models_of:
        return None
    blocks: list[Block] = [scores_table(models_of, folds, metric), effort_table(runs, models_of, params, spreads)]
    if incomplete := [
        f"{name} ({folds - len(models_of.get(name, []))})" for name in runs if len(models_of.get(name, [])) < folds
    ]:
        blocks.append(Text([f"Fold models not trained yet: {', '.join(incomplete)}. Run `make train`."], True))
    blocks += tuned_tables(work, prepared, params)
    for name, models in list(models_of.items())[:MAX_CURVES]:
        blocks += curve_charts(name, models, metric)
    return Section(
        "members", "Members", "members/<member>/<run>/fold<k>/manifest.json, history.csv · make train", blocks
    )


def scores_table(models_of: Mapping[str, Sequence[FoldModel]], folds: int, metric: str) -> Table:
    rows = []
    for name, models in models_of.items():
        scores = {model.fold: model.held_out for model in models}
        mean = float(np.mean(list(scores.values())))
        each = [f"{scores[fold]:.4f}" if fold in scores else "–" for fold in range(folds)]
        rows.append([name, f"{mean:.4f}", f"{min(scores.values()):.4f} to {max(scores.values()):.4f}", *each])
    note = (
        "Identity view; each column is of other rows, the held-out ones of its fold, so columns compare members and not folds. "
        "The spread over folds is not a standard error: folds share training rows."
    )
    columns = ["member", f"mean of the folds' {metric}", "range", *(f"fold {n}" for n in range(folds))]
    return Table(columns, rows, note=note, title="Held-out scores of the fold models")


def effort_table(
    runs: Mapping[str, Run], models_of: Mapping[str, Sequence[FoldModel]], params: Params, spreads: Mapping[str, float]
) -> Table:
    rows = []
    for name, models in models_of.items():
        member: dict[str, Any] = models[0].manifest.depends.get("member", {})
        seconds = sum(float(model.manifest.result.get("seconds", 0)) for model in models)
        views = [views_manifest(runs[name], params, model.fold) for model in models]
        predicting = sum(float(manifest.result.get("seconds", 0)) for manifest in views if manifest)
        epochs = sorted({int(model.manifest.result.get("epoch", len(model.history))) for model in models})
        rows.append(
            [
                name,
                f"{member.get('architecture', '?')}, {member.get('image_size', '?')} px, weights {member.get('weights', '?')}",
                f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}",
                f"{seconds:,.0f} s",
                f"{seconds / len(models):,.0f} s",
                f"{predicting:,.0f} s",
                f"{models[0].megabytes:,.1f} MB",
                f"{spreads[runs[name].name]:.4f}" if runs[name].name in spreads else "not studied",
            ]
        )
    note = "Spread over seeds: standard deviation of the score over training seeds, everything else equal (make noise)."
    columns = [
        "member",
        "model",
        "epochs",
        "training",
        "training per fold model",
        "predicting",
        "weights",
        "spread over seeds",
    ]
    return Table(columns, rows, 2, note)


def tuned_tables(work: Path, prepared: Prepared, params: Params) -> list[Block]:
    """The tuned hyperparameters; empty if no member was tuned."""
    rows = []
    for name in params.members:
        study = used_study(work, prepared, params, name)
        if study is None:
            continue
        values = json.loads(study.read_text(encoding="utf-8"))["values"]
        rows.append([name, format_values(values)])
    return [Table(["member", "tuned values (tune/<member>/<study>/best.json)"], rows, 2)] if rows else []


def curve_charts(name: str, models: Sequence[FoldModel], metric: str) -> list[Block]:
    """Training of a member over the epochs: losses in one picture, metric, learning rate; all folds together."""
    histories = [model.history for model in models]
    scores, held_out = by_epoch(histories, "held_out"), by_epoch(histories, "held_out_loss")
    start = overfitting(held_out)
    mark = start.best if start is not None and start.is_clear else None
    finite = np.sort(scores[np.isfinite(scores)])
    # The low scores of the first epochs would compress the rest of the chart.
    lower_limit = float(np.quantile(finite, 0.2)) if len(finite) > 10 and metric != "log_loss" else None
    clipped = "; the lowest fifth is below" if lower_limit is not None else ""
    losses = [
        Line("training loss", by_epoch(histories, "loss"), 0),
        Line("held-out loss", held_out, 1, dashed=True),
    ]
    drawings = [
        epoch_chart(losses, "loss: training and held-out", mark=mark),
        epoch_chart(
            [Line(f"held-out {metric}", scores, 1, dashed=True)], f"held-out {metric}{clipped}", lower_limit, mark
        ),
        epoch_chart(
            [Line("learning rate", by_epoch(histories, "learning_rate"), 6)], "learning rate at the epoch's end"
        ),
    ]
    key = legend(["training", "held-out"], dashed=True)
    note = (
        f"Thick: mean of {len(models)} {'fold' if len(models) == 1 else 'folds'}; thin: each of them. The training loss is of "
        "smoothed and augmented targets, the held-out loss of plain ones, so compare their course and not their level. "
        + overfitting_text(start)
    )
    return [Charts([key, *(drawing for drawing in drawings if drawing)], note, name)]


def overfitting_text(start: Overfitting | None) -> str:
    """One sentence on where the held-out loss starts to rise."""
    if start is None:
        return "Whether it overfits is unknown: that needs the held-out loss of 2 folds over 3 epochs (device.score_epochs: true)."
    rise = f"{start.rise:+.4f} ± {start.error:.4f}"
    if start.is_clear:
        return (
            f"Overfitting starts after epoch {start.best} of {start.last} (vertical line): by the end the held-out loss rises by "
            f"{rise} (over folds)."
        )
    if start.best == start.last:
        return "No overfitting: the held-out loss is lowest after the last epoch."
    return f"No clear overfitting: the held-out loss is lowest after epoch {start.best}, and {rise} (over folds) at the end."
