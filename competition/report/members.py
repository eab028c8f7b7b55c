"""The report's section on training: scores of every fold model, how they came about, how long it took."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.artifacts.dependencies import fold_model_manifest, fold_views_manifest, tuning_result_path
from competition.artifacts.manifest import Manifest, read_manifest
from competition.report.charts import curves, legend
from competition.report.page import Block, Charts, Section, Table, Text

CURVED = 12  # members whose curves are drawn; the others are in the table


@dataclass(frozen=True)
class FoldModel:
    fold: int
    made: Manifest
    history: pd.DataFrame  # epoch, loss, learning_rate, held_out
    megabytes: float  # of the weights


def trained(work: Path, name: str, folds: int) -> list[FoldModel]:
    """The fold models of a member that are finished."""
    found = []
    for fold in range(folds):
        manifest = fold_model_manifest(work, name, fold)
        made = read_manifest(manifest)
        weights, history = manifest.with_name("weights.npz"), manifest.with_name("history.csv")
        if made is not None and weights.is_file() and history.is_file():
            found.append(FoldModel(fold, made, pd.read_csv(history), weights.stat().st_size / 1e6))
    return found


def members_section(
    work: Path, names: Sequence[str], folds: int, metric: str, spreads: Mapping[str, float]
) -> Section | None:
    """spreads: member -> standard deviation of its score over training seeds, where it was studied as it is now."""
    found = {name: models for name in names if (models := trained(work, name, folds))}
    if not found:
        return None
    blocks: list[Block] = [scores_table(found, folds, metric), effort_table(work, found, spreads)]
    if lacking := [
        f"{name} ({folds - len(found.get(name, []))})" for name in names if len(found.get(name, [])) < folds
    ]:
        blocks.append(
            Text([f"Fold models that are not trained yet: {', '.join(lacking)}. `make train` trains them."], True)
        )
    blocks += tuned_tables(work, list(found))
    for name, models in list(found.items())[:CURVED]:
        blocks.append(curve_charts(name, models, metric))
    return Section("members", "Members", "members/<member>/fold<k>/manifest.json, history.csv · make train", blocks)


def scores_table(found: dict[str, list[FoldModel]], folds: int, metric: str) -> Table:
    rows = []
    for name, models in found.items():
        scores = {one.fold: float(one.made.result["held_out"]) for one in models}
        mean = float(np.mean(list(scores.values())))
        each = [f"{scores[fold]:.4f}" if fold in scores else "–" for fold in range(folds)]
        rows.append([name, f"{mean:.4f}", f"{min(scores.values()):.4f} to {max(scores.values()):.4f}", *each])
    note = "The plain view on each fold's held-out rows. The spread over folds is no standard error: folds share their training rows."
    return Table(
        ["member", f"mean held-out {metric}", "from, to", *(f"fold {n}" for n in range(folds))], rows, note=note
    )


def effort_table(work: Path, found: dict[str, list[FoldModel]], spreads: Mapping[str, float]) -> Table:
    rows = []
    for name, models in found.items():
        about: dict[str, Any] = models[0].made.depends.get("member", {})
        seconds = sum(float(one.made.result.get("seconds", 0)) for one in models)
        views = [read_manifest(fold_views_manifest(work, name, one.fold)) for one in models]
        predicting = sum(float(made.result.get("seconds", 0)) for made in views if made)
        kept = sorted({int(one.made.result.get("epoch", len(one.history))) for one in models})
        rows.append(
            [
                name,
                f"{about.get('architecture', '?')}, {about.get('image_size', '?')} px, weights {about.get('weights', '?')}",
                f"{kept[0]}" if len(kept) == 1 else f"{kept[0]} to {kept[-1]}",
                f"{seconds:,.0f} s",
                f"{seconds / len(models):,.0f} s",
                f"{predicting:,.0f} s",
                f"{models[0].megabytes:,.1f} MB",
                f"{spreads[name]:.4f}" if name in spreads else "not studied",
            ]
        )
    note = "Spread over seeds: standard deviation of the score when nothing but the seed is changed (make noise)."
    columns = [
        "member",
        "what it is",
        "epochs",
        "training",
        "a fold model",
        "predicting",
        "weights",
        "spread over seeds",
    ]
    return Table(columns, rows, 2, note)


def tuned_tables(work: Path, names: Sequence[str]) -> list[Block]:
    """What tuning chose, where it was asked for."""
    rows = []
    for name in names:
        try:
            values = json.loads(tuning_result_path(work, name).read_text(encoding="utf-8"))["values"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        rows.append([name, ", ".join(f"{key} {value:.4g}" for key, value in values.items())])
    return [Table(["member", "tuned values (tune/<member>/best.json)"], rows, 2)] if rows else []


def curve_charts(name: str, models: Sequence[FoldModel], metric: str) -> Charts:
    folds = [f"fold {one.fold}" for one in models]

    def drawn(column: str, title: str, least: float | None) -> Any:
        lines = {
            key: (one.history["epoch"].tolist(), one.history[column].tolist())
            for key, one in zip(folds, models, strict=True)
        }
        return curves(lines, title, least)

    told = np.concatenate([one.history["held_out"].to_numpy(float) for one in models])
    told = told[np.isfinite(told)]
    # The first epochs would press the rest against the edge.
    least = float(np.quantile(told, 0.2)) if len(told) > 10 and metric != "log_loss" else None
    drawings = [
        legend(folds),
        drawn(
            "held_out", f"held-out {metric}" + (" (the lowest fifth lies below)" if least is not None else ""), least
        ),
        drawn("loss", "training loss, on smoothed and augmented targets", None),
    ]
    return Charts([one for one in drawings if one], name=name)
