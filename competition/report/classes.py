"""The scored rows of a blend, the scores of each class, and the report's sections on classes and doubtful labels."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from competition.config.errors import UserError, counted
from competition.ensemble.bootstrap import FEWEST_RESAMPLES, Evaluation, Score, score_with_error
from competition.ensemble.metrics import Metric, macro_f1
from competition.ensemble.stored_predictions import load_scores, positions
from competition.files.manifest import Manifest, read_manifest
from competition.prepare.prepared import Prepared
from competition.report.charts import FEW_CLASSES, confusion_chart
from competition.report.page import Block, Charts, Image, Section, Table, Text
from competition.report.pictures import sheet_uri
from competition.report.stored_blends import read_table, stored_decisions

WORST, PAIRS, TIED = 15, 12, 3
MAX_CHART_CLASSES = 130  # a matrix of more classes is too large for the page; the tables hold the same numbers
FEWEST_CLASSES = 10  # for a sentence on F1 and number of rows
EVEN = 1.5  # the largest class has at most this many times the rows of the smallest: size explains nothing
ISSUES_FILE, ISSUES_SHEET, ISSUES_MANIFEST = "label_issues.csv", "label_issues.png", "label_issues.json"
SOURCE = "blend/honest_oof.npz, blend/honest_oof.csv · make predict"


class HonestRows(NamedTuple):
    """The scored out-of-fold rows of a blend, by blends fitted without their fold."""

    ids: np.ndarray  # (N,) str
    labels: np.ndarray  # (N,) int; of a multi-label competition (N, C) bool, of a regression (N,) float
    predicted: np.ndarray  # as labels
    scores: np.ndarray  # (N, C)


class ClassScore(NamedTuple):
    number: int
    f1: float
    precision: float
    recall: float
    rows: int  # of the class
    predicted: int  # rows


def honest_rows(blend: Path, prepared: Prepared) -> HonestRows:
    """Read the rows of a blend. Raises UserError if it has other rows than the prepared data."""
    ids, scores = load_scores(blend / "honest_oof.npz", mapped=True)
    kind = prepared.competition.targets.kind
    train = prepared.part("train")
    try:
        labels = train["label"].to_numpy()[positions(train["id"].to_numpy(str), ids)]
    except UserError as user_error:
        raise UserError(f"the blend has other rows than the prepared data ({user_error}); run `make predict`") from None
    predicted = stored_decisions(blend, ids, kind, scores.shape[1])
    scored = read_table(blend)["scored"].loc[ids].to_numpy() == 1
    targets = prepared.competition.targets.of(labels)
    if scored.all():  # no copy of what may be hundreds of megabytes
        return HonestRows(ids, targets, predicted, scores)
    return HonestRows(ids[scored], targets[scored], predicted[scored], scores[scored])


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """(C, C) int: rows by true class (down) and predicted class (across).  labels, predicted: (N,) int."""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_scores(labels: np.ndarray, predicted: np.ndarray, classes: int) -> list[ClassScore]:
    """Scores of all classes, the worst F1 first, then the larger class.

    labels, predicted: (N,) int, or (N, C) bool of several labels. F1 of a class that is absent from both is 0, as in the metric.
    """
    if labels.ndim == 2:
        hits, actual, chosen = (one.sum(0) for one in (labels & predicted, labels, predicted))
    else:
        counted_labels = (labels[labels == predicted], labels, predicted)
        hits, actual, chosen = (np.bincount(one, minlength=classes) for one in counted_labels)
    f1 = 2 * hits / np.maximum(actual + chosen, 1)
    precision, recall = hits / np.maximum(chosen, 1), hits / np.maximum(actual, 1)
    columns = (range(classes), *(one.tolist() for one in (f1, precision, recall, actual, chosen)))
    scores = [ClassScore(*figures) for figures in zip(*columns, strict=True)]
    return sorted(scores, key=lambda score: (score.f1, -score.rows))


def most_confident_errors(labels: np.ndarray, predicted: np.ndarray, scores: np.ndarray, limit: int) -> np.ndarray:
    """Row numbers of the misclassified rows, highest score of the predicted class first."""
    wrong = np.flatnonzero(labels != predicted)
    return wrong[np.argsort(-scores[wrong, predicted[wrong]], kind="stable")][:limit]


def classes_section(rows: HonestRows, prepared: Prepared) -> Section:
    """The classes with the lowest F1, the most frequent confusions, their matrix, and whether rare classes are worse.

    rows: of `honest_rows`.
    """
    _, labels, predicted, _ = rows
    names, count = prepared.competition.classes, int((labels != predicted).sum())
    text = f"Misclassified rows: {count:,} of {len(labels):,}, by blends fitted without their fold."
    blocks: list[Block] = [Text([text])]
    table, scores = confusion(labels, predicted, len(names)), class_scores(labels, predicted, len(names))
    wrong = table - np.diag(table.diagonal())
    cells = []
    for score in scores:
        most = wrong[score.number].max()
        others = [names[other] for other in np.flatnonzero(wrong[score.number] == most)]
        listed = ", ".join(others[:TIED]) + " ..." * (len(others) > TIED)
        confused_with = f"{listed} ({most:,}{' each' if len(others) > 1 else ''})" if most else "–"
        figures = [f"{value:.4f}" for value in (score.f1, score.precision, score.recall)]
        cells.append([names[score.number], confused_with, *figures, f"{score.rows:,}"])
    columns = ["class", "most often confused with", "F1", "precision", "recall", "rows"]
    blocks.append(Table(columns, cells[:WORST], 2, title="The classes with the lowest F1 (rows: of the class)"))
    pairs = np.argwhere(wrong > 0)
    pairs = pairs[np.argsort(-wrong[wrong > 0], kind="stable")]
    if len(pairs):
        shares = [
            [names[a], names[b], f"{wrong[a, b]:,}", f"{wrong[a, b] / table[a].sum():.1%}"] for a, b in pairs[:PAIRS]
        ]
        title = f"The {len(shares)} most frequent of {len(pairs)} confusions"
        blocks.append(Table(["class", "predicted as", "rows", "share of the class"], shares, 2, title=title))
    if len(names) <= MAX_CHART_CLASSES:
        many = " above 1" if len(names) > FEW_CLASSES else ""
        note = (
            "Down: the class; across: what it is taken for. Blue on the diagonal: right; orange: wrong rows, with their number"
            f"{many}; the stronger the colour, the larger the share of the class."
        )
        blocks.append(Charts([confusion_chart(table, names)], note, "Confusion matrix", zoom=True))
    if len(names) > WORST:
        blocks.append(Table(columns, cells, 2, folded=f"all {len(names)} classes"))
    if len(names) >= FEWEST_CLASSES:
        train_rows = np.bincount(prepared.part("train")["label"], minlength=len(names))
        blocks.append(Text([rare_note(labels, predicted, train_rows)], name="F1 and number of rows"))
    return Section("classes", "Classes", SOURCE, blocks)


def rare_note(labels: np.ndarray, predicted: np.ndarray, train_rows: np.ndarray) -> str:
    """Whether classes with few training rows are worse than those with many, a third each, beyond the noise of the scored rows.

    labels, predicted: (N,) int.  train_rows: (C,).
    """
    fewest, most = int(train_rows.min()), int(train_rows.max())
    if most <= EVEN * fewest:
        return f"The classes have about equally many training rows ({fewest:,} to {most:,}), so none is worse because it is rare."
    by_rows, third = np.argsort(train_rows, kind="stable"), len(train_rows) // 3
    scores, means = list[Score](), list[str]()
    for name, of in (("fewest", by_rows[:third]), ("most", by_rows[-third:])):
        metric = Metric("f1", 1, partial(macro_f1, only_present=True, classes=of), None)
        evaluation = Evaluation(metric, len(train_rows), FEWEST_RESAMPLES, seed=0)
        score = score_with_error(labels, predicted, evaluation)
        from_to = f"{train_rows[of[0]]:,} to {train_rows[of[-1]]:,}"
        means.append(f"{score.value:.3f} ± {score.error:.3f} for the {third} with the {name} training rows ({from_to})")
        scores.append(score)
    loss = scores[1].value - scores[0].value
    verdict = f"Rare classes are {'worse' if loss > 0 else 'better'}"
    if abs(loss) <= 2 * np.hypot(scores[0].error, scores[1].error):
        verdict = "Rare classes are not worse beyond noise"
    return (
        f"{verdict}: of {len(train_rows)} classes, mean F1 {means[0]}, {means[1]}; ± is the noise of the scored rows."
    )


def label_issues_section(work: Path, prepared: Prepared, blend: Manifest | None) -> Section | None:
    """The contact sheet of `make label-issues`; None if it was not run."""
    manifest, sheet = read_manifest(work / ISSUES_MANIFEST), work / ISSUES_SHEET
    if manifest is None:
        return None
    blocks: list[Block] = [
        Text(["`make label-issues` was run for another blend or for other data; run it again."], True)
    ]
    if blend is not None and manifest.depends == {"blend": blend.digest, "data": prepared.digest}:
        blocks = [Text([f"{counted(manifest.result['issues'], 'doubtful label')}, all in {ISSUES_FILE}."])]
        if sheet.is_file():
            caption = (
                "The most doubtful: the label and the class that the blend suggests instead, each with its probability."
            )
            blocks.append(Image(sheet_uri(sheet), caption))
    return Section("labels", "Doubtful labels", f"{ISSUES_FILE}, {ISSUES_SHEET} · make label-issues", blocks)
