"""The report's sections on classes, calibration and errors."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted
from competition.ensemble.predictions import load_scores, positions
from competition.files.manifest import Manifest, read_manifest
from competition.images.decoded_cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.charts import reliability_chart
from competition.report.class_charts import ORDERED, confusion_chart
from competition.report.mistakes import (
    class_scores,
    confusion,
    largest_cells,
    reliability,
)
from competition.report.page import Block, Charts, Section, Sheet, SideBySide, Table, Text
from competition.report.pictures import MAX_SIZE, NO_PICTURES, row_tiles
from competition.report.stored_blends import read_table, stored_decisions
from competition.submission.format import for_spreadsheet

WORST, PAIRS = 15, 12
PICTURED_PAIRS = 6
PICTURES_WRONG, PICTURES_RIGHT = 3, 2  # of a pair, in each direction and of each class
MAX_CHART_CLASSES = 130  # a matrix of more classes is too large for the page; the tables hold the same numbers
FEWEST_CLASSES = 10  # for a sentence on F1 and number of rows
EVEN = 1.5  # the largest class has at most this many times the rows of the smallest: size explains nothing
ISSUES_FILE, ISSUES_MANIFEST = "label_issues.csv", "label_issues.json"
SOURCE = "blend/honest_oof.npz, blend/honest_oof.csv · make predict"


class HonestRows(NamedTuple):
    """The scored out-of-fold rows of a blend, by blends fitted without their fold."""

    ids: np.ndarray  # (N,) str
    labels: np.ndarray  # (N,) int; of a multi-label competition (N, C) bool, of a regression (N,) float
    predicted: np.ndarray  # as labels
    scores: np.ndarray  # (N, C)


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
    targets = prepared.targets(labels)
    if scored.all():  # no copy of what may be hundreds of megabytes
        return HonestRows(ids, targets, predicted, scores)
    return HonestRows(ids[scored], targets[scored], predicted[scored], scores[scored])


def classes_section(rows: HonestRows, prepared: Prepared, pixels: Pixels | None) -> Section:
    """The classes with the lowest F1, the most frequent confusions, the matrix, whether rare classes are worse, and pictures.

    rows: of `honest_rows`.  pixels: as in `labels_and_values.worst_section`.
    """
    _, labels, predicted, _ = rows
    names, count = prepared.competition.classes, int((labels != predicted).sum())
    text = f"Misclassified rows: {count:,} of {len(labels):,}, by blends fitted without their fold."
    blocks: list[Block] = [Text([text])]
    table, scores = confusion(labels, predicted, len(names)), class_scores(labels, predicted, len(names))
    wrong = table - np.diag(table.diagonal())
    cells = []
    for score in scores:
        of_class = wrong[score.number]
        confused_with = f"{names[of_class.argmax()]} ({of_class.max():,})" if of_class.any() else "–"
        figures = [f"{value:.4f}" for value in (score.f1, score.precision, score.recall)]
        cells.append([names[score.number], confused_with, *figures, f"{score.rows:,}"])
    columns = ["class", "most often confused with", "F1", "precision", "recall", "rows"]
    blocks.append(Table(columns, cells[:WORST], 2, title="The classes with the lowest F1 (rows: of the class)"))
    if pairs := largest_cells(wrong, PAIRS):
        shares = [[names[a], names[b], f"{wrong[a, b]:,}", f"{wrong[a, b] / table[a].sum():.1%}"] for a, b in pairs]
        pair_columns = ["class", "predicted as", "rows", "share of the class"]
        blocks.append(
            Table(
                pair_columns, shares, 2, title=f"The {len(pairs)} most frequent of {np.count_nonzero(wrong)} confusions"
            )
        )
    if len(names) <= MAX_CHART_CLASSES:
        many = " above 1; classes that are confused stand together" if len(names) > ORDERED else ""
        note = (
            "Down: the class; across: what it is taken for. Blue on the diagonal: right; orange: wrong rows, with their number"
            f"{many}; the darker, the larger the share of the class."
        )
        blocks.append(Charts([confusion_chart(table, names)], note, "Confusion matrix", zoom=True))
    if len(names) > WORST:
        blocks.append(Table(columns, cells, 2, folded=f"all {len(names)} classes"))
    if len(names) >= FEWEST_CLASSES:
        train_rows = np.bincount(prepared.part("train")["label"], minlength=len(names))
        f1 = np.array([score.f1 for score in sorted(scores)])
        blocks.append(Text([rare_note(f1, train_rows)], name="F1 and number of rows"))
    if pixels is not None:
        blocks += pair_blocks(table, rows, prepared, pixels)
    return Section("classes", "Classes", f"{SOURCE}; cache", blocks)


def rare_note(f1: np.ndarray, train_rows: np.ndarray) -> str:
    """The rank correlation of rows and F1, and whether rare classes are worse.  f1, train_rows: (C,)."""
    fewest, most = int(train_rows.min()), int(train_rows.max())
    if most <= EVEN * fewest:
        return f"The classes have about equally many training rows ({fewest:,} to {most:,}), so none is worse because it is rare."
    correlation = pd.Series(f1).rank().corr(pd.Series(train_rows).rank()) if np.ptp(f1) > 0 else 0.0
    by_rows = np.array_split(np.argsort(train_rows, kind="stable"), 3)
    rare, frequent = f1[by_rows[0]], f1[by_rows[2]]
    errors = [float(part.std(ddof=1) / np.sqrt(len(part))) for part in (rare, frequent)]
    difference = float(frequent.mean() - rare.mean())
    verdict = "rare classes are worse" if difference > 0 else "rare classes are better"
    if abs(difference) <= 2 * np.hypot(errors[0], errors[1]):
        verdict = "rare classes are not worse beyond noise"
    means = [f"{part.mean():.3f} ± {error:.3f}" for part, error in zip((rare, frequent), errors, strict=True)]
    return (
        f"Rank correlation of rows and F1 {correlation:+.2f}; {verdict}: mean F1 {means[0]} in the third of the classes with the fewest "
        f"rows, {means[1]} in the third with the most."
    )


def pair_blocks(table: np.ndarray, rows: HonestRows, prepared: Prepared, pixels: Pixels) -> list[Block]:
    """The classes that are confused most: rows of both that are right, and those taken for the other, as pictures.

    table: (C, C), of mistakes.confusion.  rows: of `honest_rows`.  pixels: of the training rows in index order.
    """
    ids, labels, predicted, scores = rows
    names, blocks = prepared.competition.classes, list[Block]()
    for a, b in largest_cells(np.triu(table + table.T, 1), PICTURED_PAIRS):
        groups = []
        for actual, decided in ((a, a), (a, b), (b, a), (b, b)):
            chosen = np.flatnonzero((labels == actual) & (predicted == decided))
            best_first = chosen[np.argsort(-scores[chosen, decided], kind="stable")]
            shown = best_first[: PICTURES_RIGHT if actual == decided else PICTURES_WRONG]
            title = f"{names[actual]}, right"
            if actual != decided:
                title = f"{names[actual]} ✕ taken for {names[decided]}: {len(chosen):,} of {counted(int(table[actual].sum()), 'row')}"
            lines = [[f"{scores[n, decided]:.2f}", names[actual], str(ids[n])] for n in shown]
            if lines:
                groups.append((title, row_tiles(prepared, ids[shown], lines, pixels)))
        blocks.append(SideBySide(f"{names[a]} and {names[b]}", groups))
    return blocks


def calibration_section(labels: np.ndarray, scores: np.ndarray) -> Section:
    """Reliability diagram and calibration error.  labels: (N,) int.  scores: (N, C)."""
    bins, error = reliability(labels, scores)
    text = (
        f"Expected calibration error {error:.4f}: the mean |accuracy - confidence| over rows in ten bins. Points below the "
        "diagonal are overconfident, above it underconfident. Bars are one standard error."
    )
    rows = [[f"{b.confidence:.3f}", f"{b.accuracy:.3f} ± {b.error:.3f}", f"{b.rows:,}"] for b in reversed(bins)]
    table = Table(["mean confidence", "accuracy", "rows"], rows, 0, title="Accuracy by confidence")
    return Section("calibration", "Calibration", SOURCE, [Text([text]), Charts([reliability_chart(bins)]), table])


def dependencies_of_issues(prepared: Prepared, blend: Manifest) -> dict[str, str]:
    """What the list of `make label-issues` depends on."""
    return {"blend": blend.digest, "data": prepared.digest}


def current_issues(work: Path, prepared: Prepared, blend: Manifest | None) -> pd.DataFrame | None:
    """The list of `make label-issues`, with ids as in the index; None if it was not run for this blend and these data."""
    manifest, file = read_manifest(work / ISSUES_MANIFEST), work / ISSUES_FILE
    if (
        blend is None
        or manifest is None
        or manifest.depends != dependencies_of_issues(prepared, blend)
        or not file.is_file()
    ):
        return None
    issues = pd.read_csv(file, dtype={"id": str, "label": str, "suggested": str}, keep_default_na=False)
    train = prepared.part("train")
    ids = dict(zip(for_spreadsheet(train[["id"]])["id"], train["id"]))  # as in the file -> as in the index
    return issues.assign(id=issues["id"].map(ids))


def label_issues_section(
    issues: pd.DataFrame | None, was_run: bool, prepared: Prepared, pixels: Pixels | None
) -> Section | None:
    """The result of `make label-issues` as pictures; None if it was not run.

    issues: of `current_issues`.  pixels: as in `labels_and_values.worst_section`.
    """
    source = f"{ISSUES_FILE}; cache · make label-issues"
    if issues is None:
        stale = Text(["`make label-issues` was run for another blend or for other data; run it again."], True)
        return Section("labels", "Doubtful labels", source, [stale]) if was_run else None
    worst = issues.head(WORST)
    shown = f"; here the {WORST} most doubtful, all in {ISSUES_FILE}" if len(issues) > WORST else ""
    blocks: list[Block] = [Text([f"{counted(len(issues), 'doubtful label')} by the last `make label-issues`{shown}."])]
    if len(worst):
        lines = [
            [f"is {r.label} {r.label_probability:.2f}", f"✕ {r.suggested} {r.suggested_probability:.2f}", str(r.id)]
            for r in worst.itertuples()
        ]
        tiles = row_tiles(prepared, worst["id"].to_numpy(str), lines, pixels, MAX_SIZE)
        note = "The label and the class that the blend suggests instead, each with its probability, and the id."
        blocks.append(Sheet(tiles, note if pixels is not None else f"{note} {NO_PICTURES}"))
    return Section("labels", "Doubtful labels", source, blocks)
