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
from competition.data.competition import Competition, Row, Settings

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
    found = find_labels(train, id_column, test_columns, targets, settings.label_column, name)
    label_columns = found.columns
    notes = [f"ids are in column {id_column!r}, labels in {first_few(label_columns)} of {name}"]
    notes += [f"class names are in column {found.named_by!r}"] if found.named_by else []
    unused = [column for column in train if column not in (id_column, *label_columns, found.named_by)]
    notes += [f"columns {first_few(unused)} of {name} are not used"] if unused else []

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
        listed = read_csv(raw / "classes.csv") if (raw / "classes.csv").exists() else None
        name_of = dict(found.names) if listed is None else dict(zip(listed.iloc[:, 0], listed.iloc[:, -1], strict=True))
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
        metric=settings.metric or (LABEL_METRIC if predicts == "label" else "log_loss"),
        predicts=predicts,
        id_column=id_column,
        prediction_columns=tuple(columns),
        label_values=tuple(values),
        notes=(*notes, *_unlisted(raw, len(train) + len(test))),
    )
    return Layout(competition, (list(train[id_column]), labels, groups), list(test[id_column]))


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
    folder_of = {str(path): path.parent.name for path in train}
    names = in_natural_order(sorted(set(folder_of.values())))
    competition = Competition(
        name=settings.name,
        slug=settings.slug,
        classes=tuple(names),
        metric=settings.metric or LABEL_METRIC,
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
    if competition.predicts == "label":
        return [competition.label_values[0]]
    return [1 / len(competition.classes)] * len(competition.classes)


def _plain(name: str) -> str:
    return name.replace("_", " ").casefold()
