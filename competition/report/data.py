"""The report's section on the data: folds, duplicates, conflicts, leaks, unreadable images."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import counted
from competition.prepare.index import has_images
from competition.prepare.leaks import leak_sentence
from competition.prepare.prepared import Prepared
from competition.report.page import Block, Section, Table, Text

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
        blocks.append(Text([f"Training rows of the folds: {', '.join(f'{rows:,}' for rows in fold_sizes)}."]))
        if thin := table.index[(table == 0).any(axis=1)].tolist():
            listed = ", ".join(names[n] for n in thin[:MAX_ROWS]) + (" ..." if len(thin) > MAX_ROWS else "")
            text = f"{counted(len(thin), 'class', 'classes')} without a row in some fold: {listed}. Such a score is unreliable."
            blocks.append(Text([text], True))
        rows = [[names[n], f"{sizes[n]:,}", *(f"{count:,}" for count in fold_counts[n])] for n in order]
        folded = f"all {len(names)} classes, fold by fold" if len(names) > MAX_OPEN_CLASSES else ""
        blocks.append(Table(["class", "rows", *folds], rows, folded=folded))
    blocks += finding_blocks(folder, prepared)
    files = "data/index.csv, support.csv, duplicates.csv, conflicts.csv, leaks.csv, unreadable.csv"
    return Section("data", "Data", f"{files} · make download", blocks)


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
    names = {"duplicates": pairs, "photos with several labels": conflicts}
    names |= {"test images among the labelled ones": leaks, "unreadable images": unreadable}
    absent = [name for name, findings in names.items() if not len(findings)]
    blocks: list[Block] = [Text([f"Not found: {', '.join(absent)}."])] if absent and has_images(prepared.index) else []
    if len(leaks):
        bound = leak_sentence(prepared.index, leaks, competition.targets.kind)
        blocks += [Text([f"LEAK: {bound}."], True)] if bound else []
        shown = leaks.assign(exact=leaks["exact"].map(MATCH), label=leaks["label"].map(label_text))
        columns = {
            "kind": "leak",
            "id": "id",
            "match": "equal or nearly equal to",
            "label": "its label",
            "exact": "match",
        }
        blocks.append(findings_table(shown, columns, "Test images among the labelled ones"))
    if len(conflicts):
        photos = conflicts["group"].nunique()
        class_names = dict(zip(competition.label_values, competition.classes, strict=True))
        shown = conflicts.assign(label=conflicts["label"].map(lambda label: class_names.get(label, label)))
        blocks.append(Text([f"{counted(photos, 'photo has', 'photos have')} two labels or more."]))
        columns = {"group": "photo", "id": "id", "label": "label"}
        blocks.append(findings_table(shown, columns, "Conflicting labels"))
    if len(pairs):
        exact = int(pairs["exact"].sum())
        text = f"{len(pairs):,} pairs of images that are the same or nearly so, {exact:,} of them byte for byte; none crosses a fold."
        shown, columns = pairs.assign(exact=pairs["exact"].map(MATCH)), {"a": "image", "b": "alike", "exact": "match"}
        blocks += [Text([text]), findings_table(shown, columns, "Duplicates and near duplicates")]
    if len(unreadable):
        text = f"{counted(len(unreadable), 'image')} cannot be decoded; test images among them get the mean prediction."
        columns = {"id": "id", "part": "part", "shard": "file", "problem": "problem"}
        blocks += [Text([text], True), findings_table(unreadable, columns, "Unreadable images")]
    if len(removed):
        blocks.append(Text([f"{len(removed):,} external images are also in the competition and were removed."]))
    return blocks


def findings_table(findings: pd.DataFrame, columns: Mapping[str, str], title: str) -> Table:
    """A table of the first findings.  columns: of the findings -> their titles."""
    rows = findings.head(MAX_ROWS)[list(columns)].astype(str).to_numpy().tolist()
    note = f"The first {MAX_ROWS} of {len(findings):,}." if len(findings) > MAX_ROWS else ""
    return Table(list(columns.values()), rows, len(columns), note, title=title)
