"""Adapter for any images with tables or class folders, in a zip or a directory. Detects what is not configured, and reports it.

With tables:         train.csv, test.csv, sample_submission.csv (classes.csv if labels have names), images anywhere.
                     Without test.csv the images in a folder test.../ are the test images.
With class folders:  train/<class>/..., test/...   or   <class>/..., test/...
Without test images there is cross-validation only: everything but a submission.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import pandas as pd

from competition.config.errors import UserError, first_few
from competition.data.adapters.columns import find_id_column, find_labels
from competition.data.adapters.files import SUFFIXES, ImageFiles, image_paths, unread_images_note
from competition.data.adapters.source import fetch_source
from competition.data.adapters.tables import class_labels, in_natural_order, one_hot_labels, read_csv, write_csv
from competition.data.adapters.target_tables import (
    Labels,
    detect_target,
    read_columns,
    read_grades,
    read_lists,
    read_numbers,
)
from competition.data.competition import Competition, Predicts, Row, Settings
from competition.data.targets import Target, resolve_metric, target_of_metric
from competition.ensemble.metrics import METRICS

SAMPLE = "sample_submission.csv"
OTHER_TABLES = ("test.csv", SAMPLE, "classes.csv")
VALIDATION_FOLDERS = ("val", "valid", "validation")
NO_TEST_NOTE = (
    "there are no test images: cross-validation only, with honest scores and a report but without a submission"
)
# scikit-learn's default, which most graders use; it differs from macro_f1 if a class has no test row.
LABEL_METRIC = "macro_f1_present"


@dataclass(frozen=True)
class Layout:
    """The detected content of the folder. train: ids, labels and groups; test: ids; in the order of the tables."""

    competition: Competition
    train: tuple[list[str], list[int], list[str]]
    test: list[str]


def download(raw: Path, settings: Settings, fetch: Callable[[str, Path], None]) -> None:
    """Copy or unpack `source` (or fetch `slug`) into `raw`; write a sample submission if there is none."""
    fetch_source(raw, settings, fetch)
    _flatten(raw)
    if not (raw / SAMPLE).exists():
        layout = _layout(raw, settings)
        blank = _blank_prediction(layout.competition)
        header = [layout.competition.id_column, *layout.competition.prediction_columns]
        write_csv(raw / SAMPLE, header, ([row_id, *blank] for row_id in layout.test))


def describe(raw: Path, settings: Settings) -> Competition:
    return _layout(raw, settings).competition


def read_layout(raw: Path, settings: Settings) -> Layout:
    """Return the content of the folder without reading an image."""
    return _layout(raw, settings)


def rows(raw: Path, settings: Settings) -> Iterator[Row]:
    layout, files = _layout(raw, settings), ImageFiles(raw)
    ids, labels, groups = layout.train
    for row in files.rows(ids, labels, "train", groups):
        apart = settings.validation == "apart" and PurePosixPath(row.shard).parts[0] in VALIDATION_FOLDERS
        yield replace(row, part="val") if apart else row
    yield from files.rows(layout.test, [-1] * len(layout.test), "test")


def sample(raw: Path) -> Path:
    return raw / SAMPLE


def solution(raw: Path) -> Path | None:
    """Return the solution if the source contains one, for local grading."""
    path = raw / "private" / "solution.csv"
    return path if path.exists() else None


def external_rows(source: Path, competition: Competition) -> tuple[Iterator[Row], list[str]]:
    """Return (rows, skipped folders) of class folders with extra training images, matched by class name or label value.

    Ids are external/<folder>/<path>, so that they differ from those of the competition.
    """
    if competition.target in ("multi", "regression"):
        raise UserError(
            f"{source}: folders give each image one class; prepare.external cannot be used where the target is "
            f"{competition.target}; leave it empty"
        )
    number = {value: n for n, value in enumerate(competition.label_values)}
    number |= {name.casefold(): n for n, name in enumerate(competition.classes)}
    paths = image_paths(source)
    named = {path: PurePosixPath(path).parent.name for path in paths}
    label = {path: number.get(name, number.get(_plain(name), -1)) for path, name in named.items()}
    skipped = sorted({named[path] for path in paths if label[path] < 0})
    if all(value < 0 for value in label.values()):
        raise UserError(
            f"{source}: none of its folders ({first_few(skipped)}) is a class; "
            f"names like {first_few(competition.classes, 3)} were expected"
        )

    def matched_rows() -> Iterator[Row]:
        for path in paths:
            if label[path] >= 0:
                yield Row(
                    f"external/{source.name}/{path}", label[path], "external", path, 0, (source / path).read_bytes()
                )

    return matched_rows(), skipped


def _flatten(raw: Path) -> None:
    """Move the files up if everything is in a single folder, as in many zip files."""
    entries = [path for path in raw.iterdir() if not path.name.startswith((".", "__MACOSX"))]
    if len(entries) == 1 and entries[0].is_dir() and entries[0].name not in ("train", "test"):
        if all(path.suffix.lower() in SUFFIXES for path in entries[0].iterdir()):
            return  # the folder of a single class, which is refused later
        lifted = raw / ".lifted"
        entries[0].rename(lifted)
        for path in lifted.iterdir():
            path.rename(raw / path.name)
        lifted.rmdir()


def _layout(raw: Path, settings: Settings) -> Layout:
    files = ImageFiles(raw)
    table = _table_of_labels(raw, files)
    layout = _from_table(raw, table, files, settings) if table else _from_class_folders(raw, settings)
    notes = [*([] if layout.test else [NO_TEST_NOTE]), *unread_images_note(raw)]
    competition = replace(layout.competition, notes=(*layout.competition.notes, *notes))
    return replace(layout, competition=competition)


def _table_of_labels(raw: Path, files: ImageFiles) -> str:
    """train.csv, or the only other table with a column of names of image files; "" = none, so class folders."""
    if (raw / "train.csv").exists():
        return "train.csv"
    tables = sorted(path.name for path in raw.glob("*.csv") if path.name not in OTHER_TABLES)
    naming = [
        name for name in tables if any(files.known_share(column) > 0.5 for _, column in read_csv(raw / name).items())
    ]
    if len(naming) > 1:
        raise UserError(
            f"{first_few(naming)} all name images; rename the one with the training labels to train.csv, and the one "
            "with the test ids, if any, to test.csv"
        )
    return naming[0] if naming else ""


def _from_table(raw: Path, name: str, files: ImageFiles, settings: Settings) -> Layout:
    train = read_csv(raw / name)
    sample = read_csv(raw / SAMPLE) if (raw / SAMPLE).exists() else None
    test = read_csv(raw / "test.csv") if (raw / "test.csv").exists() else sample
    groups = _groups(train, settings.group_column)
    train = train.drop(columns=settings.group_column, errors="ignore")
    id_column = find_id_column(train, test, settings.id_column, files, name)
    if test is None:
        test = pd.DataFrame({id_column: files.unlisted_test_ids(train[id_column])}, dtype=str)
    targets = sample.columns.tolist()[1:] if sample is not None and sample.columns[0] == id_column else []
    test_columns = [] if test is sample else test.columns.tolist()
    listed = read_csv(raw / "classes.csv") if (raw / "classes.csv").exists() else None
    is_multi = settings.target == "multi"
    found = find_labels(train, id_column, test_columns, targets, settings.label_column, name, is_multi)
    label_columns = found.columns
    name_of = dict(found.names) if listed is None else dict(zip(listed.iloc[:, 0], listed.iloc[:, -1], strict=True))
    known = (targets if len(targets) > 1 else list(name_of)) if len(label_columns) == 1 else []
    target = detect_target(train, label_columns, known, settings.target, settings.metric)
    unused = [column for column in train if column not in (id_column, *label_columns, found.named_by)]
    unused_note = [f"columns {first_few(unused)} of {name} are not used"] if unused else []
    if target in ("multi", "regression") or (target == "ordinal" and len(label_columns) == 1 and not name_of):
        read = _read_targets(train, label_columns, id_column, target, known, name_of, name)
        competition = _target_competition(read, settings, id_column, label_columns, sample, targets)
        notes = [read.note, *unused_note, *_unlisted(raw, len(train) + len(test))]
        competition = replace(competition, notes=tuple(notes))
        return Layout(competition, (list(train[id_column]), read.numbers, groups), list(test[id_column]))

    notes = [f"ids are in column {id_column!r}, labels in {first_few(label_columns)} of {name}"]
    notes += [f"class names are in column {found.named_by!r}"] if found.named_by else []
    notes += unused_note

    if len(label_columns) > 1:
        values, names = label_columns, label_columns
        labels = one_hot_labels(train, label_columns, id_column, name)
    else:
        column = train[label_columns[0]]
        bare = train[id_column][column == ""]
        if len(bare):
            raise UserError(
                f"{name}: {len(bare):,} rows have no {label_columns[0]}, {first_few(bare)}; every row needs one"
            )
        if listed is not None:
            notes.append(f"{len(name_of)} class names come from classes.csv")
        # With one column per class, the classes must have the order of the submission's columns.
        listed_values = [] if listed is None else list(name_of)
        values = targets if len(targets) > 1 else listed_values or in_natural_order(sorted(set(column)))
        names = [name_of.get(value, value) for value in values]
        labels = class_labels(column, values, name)

    one_per_class = len(targets) > 1 or (not targets and len(label_columns) > 1)
    predicts = settings.predicts or ("probabilities" if one_per_class else "label")
    columns = (targets or names) if predicts == "probabilities" else (targets or [label_columns[0]])
    competition = Competition(
        name=settings.name,
        slug=settings.slug,
        classes=tuple(names),
        metric=resolve_metric(target, settings.metric, _default_metric(target, predicts)),
        predicts=predicts,
        id_column=id_column,
        prediction_columns=tuple(columns),
        label_values=tuple(values),
        notes=(*notes, *_unlisted(raw, len(train) + len(test))),
        target=target,
    )
    return Layout(competition, (list(train[id_column]), labels, groups), list(test[id_column]))


def _read_targets(
    train: pd.DataFrame,
    columns: list[str],
    id_column: str,
    target: Target,
    known: list[str],
    name_of: dict[str, str],
    table_name: str,
) -> Labels:
    """The labels of a multi-label, ordinal or regression competition.  known: the classes, if they are listed."""
    if target == "multi":
        if len(columns) > 1:
            return read_columns(train, columns, id_column, table_name)
        return read_lists(train[columns[0]], id_column, known, name_of, table_name)
    if len(columns) > 1:
        raise UserError(
            f"{table_name} has columns {first_few(columns, 8)}: set competition.label_column to the one that holds the "
            "number to predict"
        )
    return (read_numbers if target == "regression" else read_grades)(train[columns[0]], id_column, table_name)


def _target_competition(
    labels: Labels,
    settings: Settings,
    id_column: str,
    label_columns: list[str],
    sample: pd.DataFrame | None,
    sample_columns: list[str],
) -> Competition:
    """The description of a multi-label, ordinal or regression competition, with the submission in the sample's form."""
    predicts: Predicts = "value" if labels.target == "regression" else "label"
    one_per_class = len(sample_columns) > 1 or (not sample_columns and len(label_columns) > 1)
    if labels.target == "multi" and one_per_class:
        named = resolve_metric("multi", settings.metric, "mean_column_auc")
        # Columns of 0 and 1 for a metric of decisions, of probabilities for all others.
        predicts = "label" if METRICS[named].needs_labels else "probabilities"
    if settings.predicts and predicts == "value":
        raise UserError("competition.predicts: a regression predicts numbers; leave it empty")
    predicts = settings.predicts or predicts
    single_column = sample_columns or [label_columns[0]]
    return Competition(
        name=settings.name,
        slug=settings.slug,
        classes=labels.names,
        metric=resolve_metric(labels.target, settings.metric, _default_metric(labels.target, predicts)),
        predicts=predicts,
        id_column=id_column,
        prediction_columns=tuple(
            (sample_columns or labels.values) if one_per_class or predicts == "probabilities" else single_column
        ),
        label_values=labels.values,
        target=labels.target,
        label_targets=labels.targets,
        list_separator=labels.separator or " ",
        allows_empty_lists=labels.has_empty_lists or _has_empty_cells(sample),
    )


def _has_empty_cells(sample: pd.DataFrame | None) -> bool:
    return sample is not None and bool((sample.iloc[:, 1:] == "").to_numpy().any())


def _default_metric(target: Target, predicts: Predicts) -> str:
    """The metric of a competition that names none."""
    if target == "multi":
        return "macro_f1" if predicts == "label" else "mean_column_auc"
    if target in ("ordinal", "regression"):
        return "quadratic_kappa" if target == "ordinal" else "rmse"
    return LABEL_METRIC if predicts == "label" else "log_loss"


def _groups(train: pd.DataFrame, column: str) -> list[str]:
    if column and column not in train:
        raise UserError(f"prepare.group_column: train.csv has no column {column!r}, it has {first_few(train.columns)}")
    return list(train[column]) if column else [""] * len(train)


def _from_class_folders(raw: Path, settings: Settings) -> Layout:
    inside = [PurePosixPath(path) for path in image_paths(raw)]
    top = {path.parts[0] for path in inside if len(path.parts) > 1}
    if not inside:
        raise UserError(
            "neither a table nor a JPEG, PNG, WEBP, BMP or GIF image was found in competition.source; it should hold one "
            "folder of images per class, or images and a train.csv with ids and labels"
            + "".join(f"; {note}" for note in unread_images_note(raw))
        )
    test = [str(path) for path in inside if path.parts[0] == "test"]
    parts = ("train", *VALIDATION_FOLDERS)
    train = [path for path in inside if (path.parts[0] in parts if "train" in top else path.parts[0] != "test")]
    loose = [str(path) for path in train if len(path.parts) < (3 if "train" in top else 2)]
    if loose:
        raise UserError(
            f"{len(loose):,} images lie outside the class folders, {first_few(loose)}; move each into train/<class>/"
        )
    if settings.group_column:
        raise UserError(
            f"prepare.group_column: {settings.group_column!r} was asked for, but class folders have no train.csv to "
            "hold it; add a train.csv, or set prepare.group_by=embedding"
        )
    ignored = len(inside) - len(train) - len(test)
    unused = [f"{ignored:,} images outside train/, val/ and test/ are ignored"] if ignored else []
    target = settings.target or target_of_metric(settings.metric) or "single"
    if target in ("multi", "regression"):
        raise UserError(
            f"competition.target: {target} was asked for, but class folders give each image one class; add a train.csv"
        )
    folder_of = {str(path): path.parent.name for path in train}
    names = in_natural_order(sorted(set(folder_of.values())))
    competition = Competition(
        name=settings.name,
        slug=settings.slug,
        classes=tuple(names),
        metric=resolve_metric(target, settings.metric, _default_metric(target, "label")),
        target=target,
        predicts=settings.predicts or "label",
        id_column=settings.id_column or "id",
        prediction_columns=tuple(names)
        if settings.predicts == "probabilities"
        else (settings.label_column or "label",),
        label_values=tuple(names),
        notes=(f"no train.csv: the {len(names)} folder names are the classes, ids are the paths of the files", *unused),
    )
    number = {name: n for n, name in enumerate(names)}
    labels = [number[name] for name in folder_of.values()]
    return Layout(competition, (list(folder_of), labels, [""] * len(labels)), test)


def _unlisted(raw: Path, listed: int) -> list[str]:
    extra = len(image_paths(raw)) - listed
    return [f"{extra:,} image files are in no table and are ignored"] if extra > 0 else []


def _blank_prediction(competition: Competition) -> list[object]:
    if competition.target == "multi" and not competition.is_label_list:
        return [0 if competition.predicts == "label" else 0.5] * len(competition.classes)
    if competition.predicts == "label":
        return [competition.label_values[0]]
    return [0] if competition.predicts == "value" else [1 / len(competition.classes)] * len(competition.classes)


def _plain(name: str) -> str:
    return name.replace("_", " ").casefold()
