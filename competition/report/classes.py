"""The report's sections on what goes wrong: classes, confusions, calibration, and the errors that were surest."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import UserError
from competition.data.cache import Pixels
from competition.data.prepared import Prepared
from competition.ensemble.predictions import load_scores, positions
from competition.report.charts import confusion_chart, reliability_chart
from competition.report.mistakes import (
    ClassScore,
    are_probabilities,
    class_scores,
    confused_pairs,
    confusion,
    most_confident_errors,
    reliability,
)
from competition.report.page import Block, Charts, Section, Sheet, Table, Text, Tile
from competition.report.pictures import data_uri

WORST, PAIRS, TILES = 15, 12, 32
DRAWN = 104  # classes; of more, a picture of confusions shows nothing
SOURCE = "blend/honest_oof.npz, blend/honest_oof.csv · make predict"


def honest_rows(blend: Path, prepared: Prepared) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(ids, labels, given, scores) of the out-of-fold rows that may be scored, by chains that never saw their fold.

    Raises UserError when they are of other rows than those that are prepared now.
    """
    ids, scores = load_scores(blend / "honest_oof.npz")
    said = pd.read_csv(blend / "honest_oof.csv", dtype={"id": str}, keep_default_na=False)
    try:
        given, labels = (
            table["label"].to_numpy()[positions(table["id"].to_numpy(str), ids)]
            for table in (said, prepared.part("train"))
        )
    except UserError as user_error:
        raise UserError(
            f"the blend is of other rows than those that are prepared ({user_error}); `make predict` makes it again"
        ) from None
    at = np.ones(len(ids), bool)
    if "scored" in said:  # not in blends of older versions
        at = said["scored"].to_numpy()[positions(said["id"].to_numpy(str), ids)] == 1
    return ids[at], labels[at], given[at], scores[at]


def classes_section(labels: np.ndarray, given: np.ndarray, names: Sequence[str]) -> Section:
    """labels, given: (N,) int."""
    table = confusion(labels, given, len(names))
    scores = class_scores(table)
    columns = ["class", "most often taken for", "F1", "precision", "recall", "rows"]
    wrong = int((labels != given).sum())
    worst = [one for one in scores if one.f1 < 1][:WORST]
    blocks: list[Block] = [
        Text(
            [
                f"{wrong:,} of {len(labels):,} rows got another class than their own, by chains that never saw their fold."
            ]
        )
    ]
    if worst:
        blocks.append(
            Table(
                columns, [class_cells(one, names) for one in worst], 2, "The worst classes, by F1; rows: of the class."
            )
        )
    pairs = confused_pairs(table, PAIRS)
    if pairs:
        cells = [[names[p.actual], names[p.given], f"{p.rows:,}", f"{p.share:.1%}"] for p in pairs]
        blocks.append(
            Table(["class", "taken for", "rows", "of its rows"], cells, 2, "The confusions that happen most often.")
        )
    if len(names) <= DRAWN:
        note = "Green: right; red: wrong, the stronger, the larger the share of the class. Rest the pointer on a cell for its rows."
        blocks.append(Charts([confusion_chart(table, names)], note))
    if len(scores) > len(worst):
        every = [class_cells(one, names) for one in scores]
        blocks.append(Table(columns, every, 2, folded=f"all {len(scores)} classes"))
    return Section("classes", "Classes", SOURCE, blocks)


def class_cells(one: ClassScore, names: Sequence[str]) -> list[str]:
    taken = f"{names[one.taken_for]} ({one.taken_rows:,})" if one.taken_for >= 0 else "–"
    return [names[one.number], taken, f"{one.f1:.4f}", f"{one.precision:.4f}", f"{one.recall:.4f}", f"{one.rows:,}"]


def calibration_section(labels: np.ndarray, scores: np.ndarray) -> Section:
    """labels: (N,) int.  scores: (N, C)."""
    if not are_probabilities(scores):
        lines = [
            "The blend mixes ranks: its scores put rows in an order and are no probabilities, so there is nothing to calibrate."
        ]
        return Section("calibration", "Calibration", SOURCE, [Text(lines)])
    bins, gap = reliability(labels, scores)
    told = (
        f"Expected calibration error {gap:.4f}: the mean distance of accuracy from confidence, over rows in bins of a tenth. Points "
        "below the diagonal: too sure; above: not sure enough. Bars are one standard error."
    )
    rows = [[f"{b.confidence:.3f}", f"{b.accuracy:.3f} ± {b.error:.3f}", f"{b.rows:,}"] for b in reversed(bins)]
    table = Table(["mean confidence", "accuracy", "rows"], rows, 0)
    return Section("calibration", "Calibration", SOURCE, [Text([told]), Charts([reliability_chart(bins)]), table])


def errors_section(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], prepared: Prepared, pixels: Pixels | None
) -> Section | None:
    """The misclassified rows with the highest scores, as pictures.

    rows: of `honest_rows`.  pixels: (N, H, W, 3) uint8 of the training rows in index order; None leaves the pictures out.
    """
    ids, labels, predicted, scores = rows
    confident = most_confident_errors(labels, predicted, scores, TILES)
    if not len(confident):
        return None
    names = prepared.competition.classes
    train_rows = positions(prepared.part("train")["id"].to_numpy(str), ids[confident])
    images = [data_uri(image) for image in pixels[train_rows]] if pixels is not None else [("", False)] * len(confident)
    tiles = [
        Tile(
            *image,
            [
                f"{names[predicted[n]]} {scores[n, predicted[n]]:.2f}",
                f"is {names[labels[n]]} {scores[n, labels[n]]:.2f}",
                str(ids[n]),
            ],
        )
        for n, image in zip(confident, images, strict=True)
    ]
    note = (
        f"The {len(tiles)} errors with the highest score: the predicted class and its score, the label and its score, the id. "
        "Some of them are wrong labels (make issues-in-labels)."
    )
    if pixels is None:
        note += " No pictures: the decoded training images are not on disk; `make train` writes them (cache.disk_gigabytes)."
    return Section("errors", "Most confident errors", f"{SOURCE}; cache", [Sheet(tiles, note)])


def label_issues_section(file: Path) -> Section | None:
    """What `make issues-in-labels` found, where it was asked for."""
    if not file.is_file():
        return None
    found = pd.read_csv(file, dtype={"id": str, "label": str, "suggested": str}, keep_default_na=False)
    rows = [
        [r["id"], r["label"], r["suggested"], f"{r['label_probability']:.2f}", f"{r['suggested_probability']:.2f}"]
        for r in found.head(WORST).to_dict("records")
    ]
    columns = ["id", "label", "suggested", "score of the label", "of the suggestion"]
    blocks: list[Block] = [
        Text([f"Doubtful labels: {len(found):,}, the worst first, as they were when `make issues-in-labels` last ran."])
    ]
    if rows:
        blocks.append(Table(columns, rows, 3))
    return Section("labels", "Doubtful labels", "label_issues.csv · make issues-in-labels", blocks)
