"""Tables with ids and labels: train.csv or the only table that names images, test.csv, sample_submission.csv, classes.csv.

Which columns hold the ids, the labels and the class names is seen in the tables; what is not certain is an error.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.ensemble.metrics import METRICS
from competition.prepare.adapter_types import SAMPLE, Competition, Layout, Predicts, Settings
from competition.prepare.adapters.class_folders import split_named
from competition.prepare.adapters.image_paths import ImageFiles, unlisted_test_ids
from competition.prepare.adapters.label_cells import (
    Labels,
    class_labels,
    detect_target,
    one_hot_labels,
    read_columns,
    read_grades,
    read_lists,
    read_numbers,
    zeros_and_ones,
)
from competition.prepare.adapters.tables import in_natural_order, read_csv
from competition.prepare.index import require_different_ids
from competition.prepare.targets import Target, default_metric, resolve_metric

OTHER_TABLES = ("test.csv", SAMPLE, "classes.csv")
NO_IMAGES_NOTE = "no image files: only predictions made elsewhere can be blended; duplicates, series and shifted test rows are not noticed"
# A column with one of these names is the label if the values of the table leave several possibilities.
LABEL_NAMES = ("label", "class", "category", "target", "species", "breed", "class_name", "label_name", "class_id")


def table_of_labels(raw: Path, files: ImageFiles) -> str:
    """train.csv, or the only other table with a column of names of image files; "" = none, so class folders."""
    if (raw / "train.csv").exists():
        return "train.csv"
    tables = sorted(path.name for path in raw.glob("*.[ct]sv") if path.name not in OTHER_TABLES)
    naming = [
        name for name in tables if any(files.known_share(column) > 0.5 for _, column in read_csv(raw / name).items())
    ]
    if len(naming) > 1:
        raise UserError(
            f"{first_few(naming)} all name images; rename the one with the training labels to train.csv, and the one "
            "with the test ids, if any, to test.csv"
        )
    return naming[0] if naming else ""


@dataclass(frozen=True)
class LabelTable:
    """The table of labels, read as text, and what its columns hold."""

    name: str
    rows: pd.DataFrame
    id_column: str
    label_columns: list[str]  # the label's, or one per class
    sample_columns: list[str]  # prediction columns of the sample submission; empty without one
    class_names: dict[str, str]  # label value -> class name, in the order of the classes; {} = the values are the names

    @property
    def known_classes(self) -> list[str]:
        """Values of the classes in the order of the sample's columns or of their names; [] with a column per class."""
        if len(self.label_columns) > 1:
            return []
        return self.sample_columns if len(self.sample_columns) > 1 else list(self.class_names)


def layout_of_tables(raw: Path, name: str, files: ImageFiles, settings: Settings) -> Layout:
    """Return ids, labels and groups of the table `name` and of the test table.

    Raises UserError for what is not certain, and for what is wrong with files of images, ids and labels.
    """
    present = ((raw / table, (raw / table).exists()) for table in (SAMPLE, "classes.csv", "test.csv"))
    sample, listed, test_table = (read_csv(path) if exists else None for path, exists in present)
    train, group = read_csv(raw / name), settings.group_column
    if group and group not in train:
        raise UserError(f"prepare.group_column: {name} has no column {group!r}, it has {first_few(train.columns)}")
    groups = list(train[group]) if group else [""] * len(train)
    if (wanted := settings.label_column) and (wanted not in train or wanted == group):
        besides = " besides prepare.group_column" if wanted == group else ""
        columns = first_few(train.columns)
        raise UserError(f"competition.label_column: {name} has no column {wanted!r}{besides}, it has {columns}")
    train = train.drop(columns=group, errors="ignore")
    test = sample if test_table is None else test_table
    id_column = _find_id_column(train, test, settings.id_column, files, name)
    if test is None:
        test_ids = unlisted_test_ids(files.paths, files.find(train[id_column], "train", id_column))
        test = pd.DataFrame({id_column: test_ids}, dtype=str)
    sample_columns = sample.columns.tolist()[1:] if sample is not None and sample.columns[0] == id_column else []
    test_columns = [] if test is sample else test.columns.tolist()
    label_columns = _find_labels(train, id_column, test_columns, sample_columns, name, settings)
    class_names, others, notes = _class_names(train, listed, id_column, label_columns)
    shared = [column for column in others if column in test_columns]
    if others:
        advice = f"; head.columns of a member can add {first_few(shared)} to its features" if shared else ""
        column, are = ("column", "is") if len(others) == 1 else ("columns", "are")
        notes.append(f"{column} {first_few(others)} of {name} {are} not used{advice}")
    if (unlisted := len(files.paths) - len(train) - len(test)) > 0:
        notes.append(f"{counted(unlisted, 'image file')} in no table and therefore ignored")
    if not files.paths:
        notes.append(NO_IMAGES_NOTE)
    table = LabelTable(name, train, id_column, label_columns, sample_columns, class_names)
    target = detect_target(train, label_columns, table.known_classes, settings.target, settings.metric)
    train_paths = files.find(train[id_column], "train", id_column)
    test_paths = files.find(test[id_column], "test", id_column)
    require_different_ids(pd.concat([train[id_column], test[id_column]]))
    labels = _read_labels(table, target)
    has_empty_cells = sample is not None and bool((sample.iloc[:, 1:] == "").to_numpy().any())
    competition = _competition(table, labels, settings, labels.has_empty_lists or has_empty_cells)
    competition = replace(competition, notes=(f"ids are in column {id_column!r}, {labels.note}", *notes))
    other_columns = pd.concat([rows[[id_column, *shared]] for rows in (train, test)]) if shared else None
    validation = {
        row_id for row_id, path in train_paths.items() if "/" in path and split_named(path.split("/")[0]) == "val"
    }
    path_of, ids, test_ids = train_paths | test_paths, list(train[id_column]), list(test[id_column])
    return Layout(competition, ids, labels.numbers, groups, test_ids, path_of, validation, other_columns)


def _class_names(
    train: pd.DataFrame, listed: pd.DataFrame | None, id_column: str, label_columns: Sequence[str]
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return (label value -> class name, columns without ids, labels and class names, a note on the names).

    listed: classes.csv.
    """
    others = [column for column in train.columns.tolist() if column not in (id_column, *label_columns)]
    if listed is not None:
        names = dict(zip(listed.iloc[:, 0], listed.iloc[:, -1], strict=True))
        return names, others, [f"{len(names)} class names come from classes.csv"]
    naming = [one for one in others if len(label_columns) == 1 and _is_named_by(train, label_columns[0], one)]
    if len(naming) != 1:
        return {}, others, []
    names = dict(zip(train[label_columns[0]], train[naming[0]], strict=True))
    in_order = {value: names[value] for value in in_natural_order(list(names))}
    return in_order, [one for one in others if one != naming[0]], [f"class names are in column {naming[0]!r}"]


def _find_id_column(
    table: pd.DataFrame, test: pd.DataFrame | None, configured: str, files: ImageFiles, name: str
) -> str:
    """The column of ids: a column of both tables, if there are several the one with the most names of image files."""
    tables = {name: table} if test is None else {name: table, "test.csv": test}
    if configured:
        for table_name, content in tables.items():
            if configured not in content:
                raise UserError(
                    f"competition.id_column: {table_name} has no {configured!r}, it has {first_few(content)}"
                )
        return configured
    shared = (table if test is None else test).columns.tolist()
    shared = [column for column in shared if column in table]
    if not shared and test is not None:
        raise UserError(f"{name} ({first_few(table)}) and test.csv ({first_few(test)}) share no column; rename one")
    shares = {column: files.known_share(table[column]) for column in shared}
    naming = max(shared, key=lambda column: shares[column])
    return naming if shares[naming] > 0.5 else shared[0]


def _find_labels(
    table: pd.DataFrame, id_column: str, test: Sequence[str], targets: Sequence[str], name: str, settings: Settings
) -> list[str]:
    """The label columns of `table`: the label's, or one per class.

    test: columns of the test table, which has no labels.  targets: prediction columns of the sample submission.
    Raises UserError that asks for competition.label_column if it is not certain.
    """
    columns: list[str] = table.columns.tolist()
    if settings.label_column:
        return [settings.label_column]
    if targets and all(column in columns for column in targets):
        return list(targets)
    others = [column for column in columns if column != id_column and column not in test]
    if len(others) == 1 or (others and not targets and zeros_and_ones(table, others) is not None):
        return others
    numbered = [one for one in others for other in others if one != other and _is_named_by(table, one, other)]
    if len(numbered) == 1:  # one column of numbers, one of their names
        return numbered
    named = [column for column in others if column.casefold() in LABEL_NAMES]
    if len(named) == 1 and not table[named[0]].is_unique:
        return named
    if settings.target == "multi" and others:
        return others
    if not others:
        raise UserError(f"{name} has no column of labels besides the ids in {id_column!r}; add one, e.g. label")
    example = shlex.quote((named or others)[0])  # SET holds shell words
    raise UserError(
        f"{name} has the columns {first_few(others, 8)} besides the ids in {id_column!r}, and it is not certain which of "
        f'them is the label: set competition.label_column, e.g. SET="competition.label_column={example}"'
    )


def _is_named_by(table: pd.DataFrame, numbers: str, names: str) -> bool:
    """Return True if `numbers` holds whole numbers that repeat and `names` has one name for each, different for all."""
    if not table[numbers].str.fullmatch(r"\d+").all() or table[names].str.fullmatch(r"[-+.\d]*").any():
        return False
    pairs = table[[numbers, names]].drop_duplicates()
    one_to_one = not pairs[numbers].duplicated().any() and not pairs[names].duplicated().any()
    return one_to_one and 2 <= len(pairs) < len(table)


def _read_labels(table: LabelTable, target: Target) -> Labels:
    """The labels of all rows. Grades that have names are read as classes."""
    rows, columns, name = table.rows, table.label_columns, table.name
    if target == "multi" and len(columns) > 1:
        return read_columns(rows, columns, name)
    if target == "multi":
        return read_lists(rows[columns[0]], table.known_classes, table.class_names, name)
    if target == "regression" and len(columns) > 1:
        raise UserError(f"{name} has columns {first_few(columns, 8)}: name the number in competition.label_column")
    if target == "regression":
        return read_numbers(rows[columns[0]], name)
    if target == "ordinal" and len(columns) == 1 and not table.class_names:
        return read_grades(rows[columns[0]], name)
    note = f"labels in {first_few(columns)} of {name}"
    if len(columns) > 1:
        numbers = one_hot_labels(rows, columns, table.id_column, name)
        return Labels(target, tuple(columns), tuple(columns), numbers, (), note)
    column = rows.set_index(table.id_column)[columns[0]]
    # With one column per class, the classes must have the order of the submission's columns.
    values = table.known_classes or in_natural_order(sorted({*column} - {""}))
    names = tuple(table.class_names.get(value, value) for value in values)
    return Labels(target, names, tuple(values), class_labels(column, values, name), (), note)


def _competition(table: LabelTable, labels: Labels, settings: Settings, allows_empty_lists: bool) -> Competition:
    """The description of the competition, with the submission in the sample's form."""
    target = labels.target
    per_class = len(table.sample_columns or table.label_columns) > 1  # a submission has one column per class
    # The columns of a sample are not those of grades without names.
    are_grades = target == "ordinal" and len(table.label_columns) == 1 and not table.class_names
    predicts: Predicts = (
        "value" if target == "regression" else "probabilities" if per_class and not are_grades else "label"
    )
    if target == "multi" and per_class:
        # Columns of 0 and 1 for a metric of decisions, of probabilities for all others.
        metric = resolve_metric("multi", settings.metric, "mean_column_auc")
        predicts = "label" if METRICS[metric].needs_labels else "probabilities"
    if settings.predicts and predicts == "value":
        raise UserError("competition.predicts: a regression predicts numbers; leave it empty")
    predicts = settings.predicts or predicts
    columns: Sequence[str] = table.label_columns[:1]
    if target == "multi" and (per_class or predicts == "probabilities"):
        columns = labels.values
    elif predicts == "probabilities":
        columns = labels.names
    return Competition(
        name=settings.name,
        slug=settings.slug,
        classes=labels.names,
        metric=resolve_metric(target, settings.metric, default_metric(target, predicts)),
        predicts=predicts,
        id_column=table.id_column,
        prediction_columns=tuple(table.sample_columns or columns),
        label_values=labels.values,
        target=target,
        label_targets=labels.targets,
        list_separator=labels.separator or " ",
        allows_empty_lists=target != "multi" or allows_empty_lists,
    )
