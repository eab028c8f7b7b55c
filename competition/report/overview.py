"""The report's first screen: the result in one sentence, the scores, the wrong rows and the worst classes."""

from collections.abc import Sequence

import numpy as np

from competition.config.errors import counted
from competition.ensemble.predictions import positions
from competition.images.cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.classes import HonestRows
from competition.report.confusion_chart import confusion_chart
from competition.report.mistakes import class_scores, confusion
from competition.report.page import Block, Charts, Figure, Section, SideBySide, Text, Tile
from competition.report.pictures import SMALL_SIZE, data_uri
from competition.report.targets import glance_blocks
from competition.report.terminal import Scores, no_better_than_trivial, number, with_error

WORST_CLASSES, PICTURES = 3, 2  # shown, and wrong rows of each
MATRIX_CLASSES, MATRIX_WIDTH = (
    12,
    310.0,
)  # largest matrix of the first screen; of more classes those with the most wrong rows


def verdict(scores: Scores) -> str:
    """The result in one sentence."""
    score = f"{scores['metric']} {with_error(scores['honest'], scores['standard_error'], scores['metric'])}"
    if useless := no_better_than_trivial(scores):
        return f"{score}: {useless[0]}."
    trivial = number(scores["trivial"]["score"])
    if scores.get("optimistic"):
        return f"{score} is optimistic: every row took part in choosing the hyperparameters. Without a look at the images {trivial}."
    return f"{score} on rows that took no part in any choice; an answer that looks at no image scores {trivial}."


def wrong_rows(rows: HonestRows) -> Figure:
    """How many of the scored rows are wrong; of single labels only."""
    wrong = int((rows.labels != rows.predicted).sum())
    note = f"{wrong / max(len(rows.labels), 1):.1%} of {counted(len(rows.labels), 'scored row')}"
    return Figure("wrong rows", f"{wrong:,}", note)


def overview_section(charts: Charts, rows: HonestRows | None, prepared: Prepared, pixels: Pixels | None) -> Section:
    """The scores, and of single labels a small confusion matrix and the worst classes with their most confident errors; of
    several labels, and of a regression, see `targets.glance_blocks`.

    rows: the scored rows.  pixels: of the training rows in index order; None = no pictures.
    """
    names = prepared.competition.classes
    blocks: list[Block] = [
        Charts(charts.drawings, "Bars: one standard error. Hollow: on the rows it was chosen on, optimistic.")
    ]
    if rows is not None and prepared.competition.targets.kind == "single":
        table = confusion(rows.labels, rows.predicted, len(names))
        blocks.append(small_matrix(table, names))
        if pixels is not None and (groups := worst_classes(table, rows, prepared, pixels)):
            blocks.append(SideBySide("Worst classes", groups))
    elif rows is not None:
        blocks += glance_blocks(rows, prepared, pixels)
    blocks.append(Text([charts.note]))
    return Section("overview", "At a glance", "blend/scores.json, blend/honest_oof.npz · make predict", blocks)


def small_matrix(table: np.ndarray, names: Sequence[str]) -> Charts:
    """The confusion matrix; of many classes those with the most wrong rows.  table: (C, C), of mistakes.confusion."""
    wrong = table.sum(0) + table.sum(1) - 2 * np.diag(table)
    chosen = np.sort(np.argsort(-wrong, kind="stable")[:MATRIX_CLASSES])
    note = "Down: the class; across: what it is taken for. Blue: right, orange: wrong."
    if len(chosen) < len(names):
        note += f" Of {len(names)} classes the {len(chosen)} with the most confusions; all are in the section Classes."
    drawing = confusion_chart(table[np.ix_(chosen, chosen)], [names[int(n)] for n in chosen], MATRIX_WIDTH)
    return Charts([drawing], note)


def worst_classes(
    table: np.ndarray, rows: HonestRows, prepared: Prepared, pixels: Pixels
) -> list[tuple[str, list[Tile]]]:
    """(title, pictures of wrong rows: of the class, or taken for it) of each of the worst classes.

    table: (C, C), of mistakes.confusion.
    """
    ids, labels, predicted, probs = rows
    names, groups = prepared.competition.classes, []
    train_rows = positions(prepared.part("train")["id"].to_numpy(str), ids)
    for score in [one for one in class_scores(table) if one.f1 < 1][:WORST_CLASSES]:
        wrong = np.flatnonzero(((labels == score.number) | (predicted == score.number)) & (labels != predicted))
        shown = wrong[np.argsort(-probs[wrong, predicted[wrong]], kind="stable")][:PICTURES]
        tiles = [
            Tile(*data_uri(image, SMALL_SIZE), [f"{names[labels[n]]} taken for {names[predicted[n]]}", str(ids[n])])
            for n, image in zip(shown, pixels[train_rows[shown]], strict=True)
        ]
        missed = int((labels[wrong] == score.number).sum())
        title = f"{names[score.number]}: F1 {score.f1:.2f}; {missed:,} of {score.rows:,} missed, "
        groups.append((f"{title}{len(wrong) - missed:,} others taken for it", tiles))
    return groups
