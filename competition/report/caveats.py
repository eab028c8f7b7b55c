"""What series across folds and shifted test rows do to the honest score: scores, messages, and the report's section."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.config.errors import counted
from competition.ensemble.external_check import NOT_OUT_OF_FOLD, OTHER_FOLDS, OTHER_IDS, doubted_members
from competition.ensemble.metrics import Metric, default_labels
from competition.ensemble.nested_cross_fit import scored_rows
from competition.prepare.prepared import Caveats
from competition.prepare.series import NOTED, crossing, may_be_chance
from competition.prepare.shift import Shift
from competition.report.page import Block, Image, Section, Text
from competition.report.pictures import sheet_uri
from competition.report.terminal import Scores, with_error
from competition.workspace.ensemble_inputs import EnsembleInputs

# Measured on Oxford Flowers 102 with series planted into it; see competition.prepare.series.
FALSE_RATE = "in tests on flower photos it joined 1.6 % of the photos that are in no series, 4 % in a set of 160 photos"
FEWEST_ROWS = 30  # of each group, whose accuracies are compared
DRAWS = 200  # importance resamples behind a weighted score
VALUES_AT_MOST = 400_000_000  # rows x classes x draws of a metric of probabilities
DOUBTS = {  # of a score, with the members
    OTHER_IDS: "the test predictions of {} seem to have other ids, or its models to know the scored rows",
    NOT_OUT_OF_FOLD: "the models of {} were probably trained on the scored rows",
    OTHER_FOLDS: "the models of {} may have been trained on the scored rows",
}


def series_line(table: pd.DataFrame, members: pd.DataFrame, group_by: str, folder: str = "data") -> list[str]:
    """One line if series cross folds often enough to make the honest score optimistic, or if they are kept together.

    table: the index.  members: of series.find.  folder: data/, as it is shown.
    """
    series = dict(zip(members["id"], members["series"]))
    crossing_rows = int(crossing(series, table["id"].to_numpy(), table["fold"].to_numpy())[0].sum())
    objects = members["series"].nunique()
    rows = int((table["part"] == "train").sum())
    is_weak = may_be_chance(members, rows)
    weak = " (weak evidence: few, and most no closer than by chance)" * is_weak
    summary = f"{len(members):,} photos may be series of {counted(objects, 'object')}{weak}"
    if crossing_rows and crossing_rows >= NOTED * rows:
        advice = (
            "if it is right, set prepare.group_by=embedding in the parameter file; if only in part, name the objects in a column of "
            "train.csv (docs/series_and_shift.md makes one) and set prepare.group_by=column prepare.group_column=NAME"
        )
        if group_by == "column":
            advice = (
                "photos of one object need the same value in prepare.group_column, the others are right as they are"
            )
        return [
            f"{summary}, and {crossing_rows:,} have a photo of their series in another fold: "
            f"look at the contact sheet {folder}/series.png{' before you join any' * is_weak}; {advice}"
        ]
    if group_by == "embedding" and objects:
        largest = int(members["series"].value_counts().max())
        return [f"{summary} (the largest has {largest:,}); none crosses a fold: {folder}/series.csv, series.png"]
    return []


def shift_line(shift: Shift | None, folder: str = "data") -> list[str]:
    """One warning if test rows differ from training rows.  folder: data/, as it is shown."""
    if shift is None or not shift.differs:
        return []
    return [f"WARNING test images do not look like training images: {_auc(asdict(shift))}; {folder}/shift.csv"]


def series_and_shift_effects(
    caveats: Caveats, rows: EnsembleInputs, output: np.ndarray, metric: Metric, classes: int, seed: int
) -> dict[str, Any]:
    """Effect of series and shift on the honest score, as JSON; empty if there is none.

    output: (N,) labels or (N, C) probabilities of the out-of-fold rows, as they are scored. Rows of tuned folds
    are left out, unless there are no others.
    """
    ids, labels, (honest, _) = rows.ids, rows.labels, scored_rows(rows.folds, rows.tuned_folds)
    effects: dict[str, Any] = {}
    has_mate, series = crossing(caveats.series, ids, rows.folds)
    alone = honest & ~has_mate
    has_rights = metric.target != "regression"  # the effect of series is measured by the share of right rows
    are_many = has_mate.any() and has_mate.sum() >= NOTED * len(ids)
    if has_rights and are_many and min((honest & has_mate).sum(), alone.sum()) >= FEWEST_ROWS:
        clusters = np.where(series >= 0, series, -1 - np.arange(len(ids)))
        effects["series"] = {
            name: accuracy(labels[chosen], output[chosen], clusters[chosen])
            for name, chosen in (("with_mate", honest & has_mate), ("without_mate", alone))
        }
    if caveats.shift:
        effects["shift"] = {**asdict(caveats.shift), "differs": caveats.shift.differs}
        if caveats.shift.differs:
            odds = np.array([caveats.odds.get(one, np.nan) for one in ids[honest]])
            odds = np.where(np.isfinite(odds), odds, np.nanmedian(odds) if np.isfinite(odds).any() else 1.0)
            scored = weighted_score(labels[honest], output[honest], metric, classes, odds, seed)
            effects["shift"]["weighted"] = {**scored, "value": metric.display(scored["value"])}
    return effects


def accuracy(labels: np.ndarray, output: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """Number of rows, share of correct rows ("value") and its standard error, clustered ("error").

    labels: (N,) int; multi-label: (N, C) bool, and a row is correct if all its labels are.  output: (N,) labels or (N, C)
    probabilities.  clusters: (N,) int; rows of one cluster are dependent.
    The error is at least that of one more correct and one more wrong row (Laplace), so it is never 0.
    """
    correct = default_labels(output, "multi" if labels.ndim == 2 else "single") == labels
    correct = correct.all(1) if correct.ndim == 2 else correct
    rows, value = len(correct), float(correct.mean())
    _, cluster = np.unique(clusters, return_inverse=True)
    sums = np.bincount(cluster, weights=correct - value)
    smoothed = (correct.sum() + 1) / (rows + 2)
    least = np.sqrt(smoothed * (1 - smoothed) / rows)
    return {"rows": rows, "value": value, "error": float(max(np.sqrt((sums**2).sum()) / rows, least))}


def weighted_score(
    labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int, weights: np.ndarray, seed: int
) -> dict[str, float]:
    """Score ("value") of rows drawn in proportion to `weights`, (N,) above 0, by importance resampling, its error and effective rows.

    N rows are drawn DRAWS times and the scores averaged. The error is their standard deviation, scaled from N rows to the
    effective sample size (Kish 1965).
    """
    rows = len(labels)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    draws = DRAWS if output.ndim == 1 else int(np.clip(VALUES_AT_MOST // output.size, 20, DRAWS))
    rng, scores = np.random.default_rng(seed), []
    for _ in range(draws):
        sample = rng.choice(rows, rows, p=weights / weights.sum())
        scores.append(metric.evaluate(labels[sample], output[sample], classes))
    error = float(np.std(scores) * np.sqrt(rows / effective))
    return {"value": float(np.mean(scores)), "error": error, "effective_rows": effective}


def has_shift(scores: Scores) -> bool:
    """Do the test rows differ from the training rows, so that no interval can be expected?"""
    return bool(scores.get("caveats", {}).get("shift", {}).get("differs"))


def without_expectation(scores: Scores) -> str:
    """Why no interval for the test rows can be stated, by the first of DOUBTS on the score, if it is doubted; "" = it can."""
    for doubt, words in DOUBTS.items():
        if members := doubted_members(scores, doubt):
            return words.format(", ".join(members))
    return "the test rows do not look like the training rows" if has_shift(scores) else ""


def series_sentences(scores: Scores) -> list[str]:
    """Accuracy on rows with and without a photo of their series in another fold."""
    accuracies = scores.get("caveats", {}).get("series")
    if not accuracies:
        return []
    mate, alone = accuracies["with_mate"], accuracies["without_mate"]
    of_mate, of_alone = (with_error(one["value"], one["error"], "accuracy") for one in (mate, alone))
    return [
        f"series: accuracy {of_mate} on {counted(mate['rows'], 'row')} with a photo of their series in another fold, "
        f"{of_alone} on the {alone['rows']:,} others: on other objects expect the second "
        "(prepare.group_by=embedding keeps series together)"
    ]


def shift_sentences(scores: Scores) -> list[str]:
    """Whether test rows look like training rows and, if not, what is known about their score."""
    shift = scores.get("caveats", {}).get("shift")
    if not shift:
        return []
    if not shift["differs"]:
        words = "differ little from" if shift["low"] > 0.5 else "look like"
        return [f"test rows {words} training rows: {_auc(shift)}"]
    weighted, rows = shift["weighted"], shift["test_rows"]
    return [
        f"WARNING the {rows:,} test rows do not look like the training rows, so no interval is expected of them: {_auc(shift)}",
        f"training rows weighted to resemble them score {with_error(weighted['value'], weighted['error'], scores['metric'])} "
        f"(worth {weighted['effective_rows']:,.0f} rows of equal weight)",
        f"{shift['unlike']:,} test rows are unlike any training row: nothing here says how they score; data/shift.csv",
    ]


def caveats_section(
    folder: Path, caveats: Caveats, train: pd.DataFrame, scores: Scores, has_test: bool = True
) -> Section:
    """Series and adversarial validation.

    folder: of the prepared data.  train: training rows of the index.  scores: of the blend; empty without a blend.
    has_test: the competition has test images.
    """
    has_mate, series = crossing(caveats.series, train["id"].to_numpy(str), train["fold"].to_numpy())
    members, objects = int((series >= 0).sum()), len(np.unique(series[series >= 0]))
    text = (
        f"{members:,} of {len(train):,} training photos may be series of {counted(objects, 'object')}; "
        f"{int(has_mate.sum()):,} have a photo of their series in another fold. Whether they are series is for the eye to judge: "
        f"{FALSE_RATE}."
    )
    if not members:
        text = f"None of the {len(train):,} training photos looks like one of a series of the same object, among photos of one label."
    shift = caveats.shift
    # Without a blend only its likeness is known.
    of_data = {"caveats": {"shift": {**asdict(shift), "differs": False}}} if shift is not None else {}
    # Lines of the terminal as sentences of the page.
    of_series, of_shift = (
        [f"{line[0].upper()}{line[1:].removesuffix('.')}." for line in lines]
        for lines in (
            series_sentences(scores),
            shift_sentences(scores) or shift_line(shift) or shift_sentences(of_data),
        )
    )
    is_noted = bool(has_mate.sum() >= NOTED * max(len(train), 1))
    blocks: list[Block] = [Text([text, *of_series], is_noted)]
    if shift is None:
        why = "there are too few" if has_test else "there are none"
        blocks.append(Text([f"Adversarial validation: test rows were not compared with training rows, because {why}."]))
    else:
        counts = f"{shift.test_rows:,} test rows and {counted(shift.train_rows, 'training row')}"
        unlike = f"odds above those of 99 % of the training rows: {counted(shift.unlike, 'test row')}"
        classifier = f"Adversarial validation, by cross-validated logistic regression on {counts}; {unlike}."
        blocks.append(Text([classifier, *of_shift], shift.differs))
    if (folder / "series.png").is_file():
        blocks.append(Image(sheet_uri(folder / "series.png"), "The largest of what may be series; series.csv has all."))
    sources = "data/series.csv, series.png, shift.csv, shift.json, blend/scores.json"
    title = "Adversarial validation and series"
    return Section("caveats", title, f"{sources} · make download, make predict", blocks)


def _auc(shift: Scores) -> str:
    return f"AUC {shift['auc']:.3f} ({shift['low']:.3f} to {shift['high']:.3f}; 0.5 = alike) of telling them apart"
