"""The report's section on the data: folds, duplicates, conflicts, leaks, unreadable images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from competition.data.folds import share_errors, thin_classes
from competition.data.leaks import inflation
from competition.data.prepared import Prepared
from competition.report.charts import bar_chart
from competition.report.page import Block, Charts, Section, Table, Text

LISTED = 12  # rows of a table of findings
NAMED = 20  # classes, at most, that are listed fold by fold without a click


def data_section(prepared: Prepared) -> Section:
    folder, names = prepared.folder, prepared.competition.classes
    counts = prepared.index["part"].value_counts(sort=False)
    parts = ", ".join(f"{count:,} {part}" for part, count in counts.items())
    blocks: list[Block] = [Text([f"{parts}; {len(names)} classes.", *prepared.competition.notes])]
    support = read(folder / "support.csv")
    if len(support):
        blocks += folds_blocks(support.set_index("class").rename_axis(columns="fold"), names)
    blocks += found_blocks(folder, prepared)
    return Section(
        "data",
        "Data",
        "data/index.csv, support.csv, duplicates.csv, conflicts.csv, leaks.csv, unreadable.csv · make download",
        blocks,
    )


def read(file: Path) -> pd.DataFrame:
    """A table of findings, ids as they are; empty where there is none."""
    if not file.is_file():
        return pd.DataFrame()
    texts = {"id": str, "match": str, "a": str, "b": str, "shard": str, "problem": str}
    return pd.read_csv(file, dtype=texts, keep_default_na=False)


def folds_blocks(support: pd.DataFrame, names: Sequence[str]) -> list[Block]:
    """support: (C, K) training rows of every class in every fold."""
    sizes, counts = support.sum(axis=1).to_numpy(), support.to_numpy()
    order = np.argsort(-sizes, kind="stable")
    folds = [f"fold {name}" for name in support.columns]
    share = ["error of the class shares", *(f"{error:.3f}" for error in share_errors(support))]
    note = (
        "Error of the class shares: sum over classes of |share in the fold - share in all|; 0 is perfect, 2 the worst."
    )
    blocks: list[Block] = [
        Table(["", *folds], [["training rows", *(f"{rows:,}" for rows in counts.sum(0))], share], note=note)
    ]
    many = len(names) > NAMED
    if many:
        titles = [f"{names[n]}: {sizes[n]:,}" for n in order]
        blocks.append(Charts([bar_chart(sizes[order].tolist(), titles, "training rows of each class")]))
    if thin := thin_classes(support):
        told = ", ".join(names[n] for n in thin[:LISTED]) + (" ..." if len(thin) > LISTED else "")
        blocks.append(Text([f"{len(thin)} classes are missing from some fold: {told}. Their score is a guess."], True))
    rows = [[names[n], f"{sizes[n]:,}", *(f"{count:,}" for count in counts[n])] for n in order]
    folded = f"all {len(names)} classes, fold by fold" if many else ""
    return [*blocks, Table(["class", "rows", *folds], rows, folded=folded)]


def found_blocks(folder: Path, prepared: Prepared) -> list[Block]:
    pairs, conflicts, leaks, bad, removed = (
        read(folder / f"{name}.csv") for name in ("duplicates", "conflicts", "leaks", "unreadable", "external_removed")
    )
    names = prepared.competition.classes
    blocks: list[Block] = []
    if clean := [
        name
        for name, table in (
            ("photos that are there twice", pairs),
            ("photos under two labels", conflicts),
            ("test images among labelled ones", leaks),
            ("unreadable images", bad),
        )
        if not len(table)
    ]:
        blocks.append(Text([f"None were found: {', '.join(clean)}."]))
    if len(leaks):
        bound = inflation(prepared.index, leaks, len(names))
        if bound.touched:
            told = (
                f"LEAK: {bound.touched:,} of {bound.rows:,} test images are also labelled images: worth at most {bound.accuracy:.4f} of "
                f"accuracy and {bound.macro_recall:.4f} of macro recall."
            )
            blocks.append(Text([told], True))
        rows = [
            [r["kind"], r["id"], r["match"], _name(names, r["label"]), _same(r["exact"])]
            for r in leaks.head(LISTED).to_dict("records")
        ]
        blocks.append(Table(["leak", "id", "the same photo as", "its label", "how"], rows, 5, _rest(leaks)))
    if len(conflicts):
        photos = conflicts["group"].nunique()
        told = f"{photos:,} {'photo stands' if photos == 1 else 'photos stand'} under two labels or more."
        rows = [[f"{r['group']}", r["id"], _name(names, r["label"])] for r in conflicts.head(LISTED).to_dict("records")]
        blocks += [Text([told]), Table(["photo", "id", "label"], rows, 3, _rest(conflicts))]
    if len(pairs):
        told = f"{len(pairs):,} pairs of the same photo, {int(pairs['exact'].sum()):,} of them byte for byte; none crosses a fold."
        rows = [
            [r["a"], r["b"], _same(r["exact"]), f"{r['bits']:.0f}", f"{r['pixels']:.2f}"]
            for r in pairs.head(LISTED).to_dict("records")
        ]
        columns = ["photo", "again as", "how", "bits apart, of 64", "pixels apart, of 255"]
        blocks += [Text([told]), Table(columns, rows, 3, _rest(pairs))]
    if len(bad):
        rows = [[r["id"], r["part"], r["shard"], r["problem"]] for r in bad.head(LISTED).to_dict("records")]
        blocks += [
            Text([f"{len(bad):,} images cannot be read; test images among them get the mean prediction."], True),
            Table(["id", "part", "file", "problem"], rows, 4, _rest(bad)),
        ]
    if len(removed):
        blocks.append(Text([f"{len(removed):,} external images are photos of the competition and were removed."]))
    return blocks


def _name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else "unknown"


def _same(exact: bool) -> str:
    return "byte for byte" if exact else "nearly"


def _rest(table: pd.DataFrame) -> str:
    return f"The first {LISTED} of {len(table):,}." if len(table) > LISTED else ""
