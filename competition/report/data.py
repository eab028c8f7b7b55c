"""The report's section on the data: folds, duplicates, conflicts, leaks, unreadable images."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.config.errors import counted
from competition.prepare.folds import share_errors, thin_classes
from competition.prepare.leaks import inflation
from competition.prepare.prepared import Prepared
from competition.report.charts import bar_chart
from competition.report.page import Block, Charts, Section, Table, Text

MAX_ROWS = 12  # of a table of findings
MATCH = {True: "byte for byte", False: "nearly"}  # of two photos
MAX_OPEN_CLASSES = 20  # a longer table of classes is folded


def data_section(prepared: Prepared) -> Section:
    """Parts, folds, and what `make download` found in the data."""
    folder, names = prepared.folder, prepared.competition.classes
    counts = prepared.index["part"].value_counts(sort=False)
    parts = ", ".join(f"{count:,} {part}" for part, count in counts.items())
    is_regression = prepared.competition.target == "regression"
    classes = "numbers to predict" if is_regression else counted(len(names), "class", "classes")
    blocks: list[Block] = [Text([f"{parts}; {classes}.", *prepared.competition.notes])]
    support = read(folder / "support.csv")
    if len(support) and not is_regression:
        table = support.set_index("class").rename_axis(columns="fold")
        # Rows of several labels are in several classes: a fold has fewer rows than its column of the table adds up to.
        fold_sizes = np.bincount(prepared.part("train")["fold"], minlength=table.shape[1]).tolist()
        sizes, fold_counts = table.sum(axis=1).to_numpy(), table.to_numpy()
        order = np.argsort(-sizes, kind="stable")
        folds = [f"fold {name}" for name in table.columns]
        share = ["error of the class shares", *(f"{error:.3f}" for error in share_errors(table))]
        note = "Error of the class shares: sum over classes of |share in the fold - share in all|; 0 is perfect, 2 is the worst."
        blocks += [
            Table(["of the fold", *folds], [["training rows", *(f"{rows:,}" for rows in fold_sizes)], share], note=note)
        ]
        is_long = len(names) > MAX_OPEN_CLASSES
        if is_long:
            titles = [f"{names[n]}: {sizes[n]:,}" for n in order]
            blocks.append(Charts(bar_chart(sizes[order].tolist(), titles, "training rows of each class")))
        if thin := thin_classes(table):
            listed = ", ".join(names[n] for n in thin[:MAX_ROWS]) + (" ..." if len(thin) > MAX_ROWS else "")
            blocks.append(
                Text(
                    [
                        f"{counted(len(thin), 'class', 'classes')} without a row in some fold: {listed}. Such a score is unreliable."
                    ],
                    True,
                )
            )
        rows = [[names[n], f"{sizes[n]:,}", *(f"{count:,}" for count in fold_counts[n])] for n in order]
        folded = f"all {len(names)} classes, fold by fold" if is_long else ""
        blocks.append(Table(["class", "rows", *folds], rows, folded=folded))
    blocks += finding_blocks(folder, prepared)
    return Section(
        "data",
        "Data",
        "data/index.csv, support.csv, duplicates.csv, conflicts.csv, leaks.csv, unreadable.csv · make download",
        blocks,
    )


def read(file: Path) -> pd.DataFrame:
    """Read a table of findings with ids (and the labels of conflicts.csv) as text; empty if the file is missing."""
    if not file.is_file():
        return pd.DataFrame()
    texts = {"id": str, "match": str, "a": str, "b": str, "shard": str, "problem": str}
    texts |= {"label": str} if file.name == "conflicts.csv" else {}
    return pd.read_csv(file, dtype=texts, keep_default_na=False)


def finding_blocks(folder: Path, prepared: Prepared) -> list[Block]:
    """What was found in the data, and one sentence on what was not."""
    competition, label_text = prepared.competition, prepared.competition.label_text
    pairs, conflicts, leaks, unreadable, removed = (
        read(folder / f"{name}.csv") for name in ("duplicates", "conflicts", "leaks", "unreadable", "external_removed")
    )
    names = {"duplicate photos": pairs, "photos with several labels": conflicts}
    names |= {"test images among the labelled ones": leaks, "unreadable images": unreadable}
    absent = [name for name, findings in names.items() if not len(findings)]
    blocks: list[Block] = [Text([f"Not found: {', '.join(absent)}."])] if absent else []
    if len(leaks):
        bound = inflation(prepared.index, leaks, competition.label_count)
        blocks += [Text([f"LEAK: {bound.sentence(competition.targets.kind)}."], True)] if bound.touched else []
        table = first_findings(
            leaks,
            lambda r: {
                "leak": r["kind"],
                "id": r["id"],
                "same photo as": r["match"],
                "its label": label_text(r["label"]),
                "match": MATCH[r["exact"]],
            },
            "Test images among the labelled ones",
        )
        blocks.append(table)
    if len(conflicts):
        photos = conflicts["group"].nunique()
        class_names = dict(zip(competition.label_values, competition.classes, strict=True))
        table = first_findings(
            conflicts,
            lambda r: {"photo": f"{r['group']}", "id": r["id"], "label": class_names.get(r["label"], r["label"])},
            "Conflicting labels",
        )
        blocks += [Text([f"{counted(photos, 'photo has', 'photos have')} two labels or more."]), table]
    if len(pairs):
        exact = int(pairs["exact"].sum())
        text = f"{len(pairs):,} pairs of the same photo, {exact:,} of them byte for byte; none crosses a fold."
        table = first_findings(
            pairs,
            lambda r: {
                "photo": r["a"],
                "same as": r["b"],
                "match": MATCH[r["exact"]],
                "hash distance, of 64 bits": f"{r['bits']:.0f}",
                "pixel distance, of 255": f"{r['pixels']:.2f}",
            },
            "Duplicate photos",
        )
        blocks += [Text([text]), table]
    if len(unreadable):
        text = f"{counted(len(unreadable), 'image')} cannot be decoded; test images among them get the mean prediction."
        table = first_findings(
            unreadable,
            lambda r: {"id": r["id"], "part": r["part"], "file": r["shard"], "problem": r["problem"]},
            "Unreadable images",
        )
        blocks += [Text([text], True), table]
    if len(removed):
        blocks.append(Text([f"{len(removed):,} external images are also in the competition and were removed."]))
    return blocks


def first_findings(findings: pd.DataFrame, cells: Callable[[dict[Hashable, Any]], dict[str, str]], title: str) -> Table:
    """A table of the first findings.  cells: a finding -> column -> cell, texts except distances."""
    rows = [cells(finding) for finding in findings.head(MAX_ROWS).to_dict("records")]
    words = sum("distance" not in column for column in rows[0])
    note = f"The first {MAX_ROWS} of {len(findings):,}." if len(findings) > MAX_ROWS else ""
    return Table(list(rows[0]), [list(row.values()) for row in rows], words, note, title=title)
