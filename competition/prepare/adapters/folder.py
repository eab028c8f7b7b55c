"""Adapter for any images with tables or class folders, in a zip or a directory. Detects what is not configured, and reports it.

With tables:         train.csv, test.csv, sample_submission.csv (classes.csv if labels have names), images anywhere.
                     Without test.csv the images in a folder test.../ are the test images.
With class folders:  train/<class>/..., test/...   or   <class>/..., test/...
Without test images there is cross-validation only: everything but a submission.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from competition.config.errors import UserError, first_few
from competition.files.image_codec import SUFFIXES
from competition.prepare.adapter_types import SAMPLE, Competition, Row, Settings
from competition.prepare.adapters.class_folders import layout_of_class_folders, split_named
from competition.prepare.adapters.folder_layout import Layout
from competition.prepare.adapters.image_files import ImageFiles, image_paths, unread_files_notes
from competition.prepare.adapters.labelled_tables import layout_of_tables, table_of_labels
from competition.prepare.adapters.raw_source import fetch_source
from competition.prepare.adapters.tables import write_csv

NO_TEST_NOTE = "there are no test images: cross-validation only, with honest scores and a report but no submission"


def download(raw: Path, settings: Settings, fetch: Callable[[str, Path], None]) -> None:
    """Copy or unpack `source` (or fetch `slug`) into `raw`; write a sample submission if there is none."""
    fetch_source(raw, settings, fetch)
    entries = [path for path in raw.iterdir() if not path.name.startswith((".", "__MACOSX"))]
    is_one_folder = len(entries) == 1 and entries[0].is_dir() and entries[0].name not in ("train", "test")
    # As in many zip files, whose content moves up. A folder of images alone is a single class, which is refused later.
    if is_one_folder and not all(path.suffix.lower() in SUFFIXES for path in entries[0].iterdir()):
        lifted = raw / ".lifted"
        entries[0].rename(lifted)
        for path in lifted.iterdir():
            path.rename(raw / path.name)
        lifted.rmdir()
    if not (raw / SAMPLE).exists():
        layout = read_layout(raw, settings)
        write_csv(raw / SAMPLE, *blank_submission(layout.competition, layout.test_ids))


def describe(raw: Path, settings: Settings) -> Competition:
    return read_layout(raw, settings).competition


def rows(raw: Path, settings: Settings) -> Iterator[Row]:
    layout, files = read_layout(raw, settings), ImageFiles(raw)
    id_column = layout.competition.id_column
    for row in files.rows(layout.ids, layout.labels, "train", id_column, layout.groups):
        top, _, below = row.shard.partition("/")
        is_named_val = bool(below) and split_named(top) == "val"
        is_in_val = is_named_val if layout.validation is None else row.id in layout.validation
        yield replace(row, part="val") if is_in_val and settings.validation == "apart" else row
    yield from files.rows(layout.test_ids, [-1] * len(layout.test_ids), "test", id_column)


def external_rows(source: Path, competition: Competition) -> tuple[Iterator[Row], list[str]]:
    """Return (rows, skipped folders) of class folders with extra training images, matched by class name or label value.

    Ids are external/<folder>/<path>, so that they differ from those of the competition.
    """
    if competition.target in ("multi", "regression"):
        raise UserError(f"prepare.external: {source} has classes, the target is {competition.target}; leave it empty")
    number = {value: n for n, value in enumerate(competition.label_values)}
    number |= {name.replace("_", " ").casefold(): n for n, name in enumerate(competition.classes)}
    paths = image_paths(source)
    label = {}
    for path in paths:  # the folder nearest to the image whose name is a class
        folders = reversed(PurePosixPath(path).parts[:-1])
        numbers = (number.get(name, number.get(name.replace("_", " ").casefold(), -1)) for name in folders)
        label[path] = next((value for value in numbers if value >= 0), -1)
    skipped = sorted({PurePosixPath(path).parent.as_posix() for path in paths if label[path] < 0})
    if all(value < 0 for value in label.values()):
        raise UserError(
            f"{source}: none of its folders ({first_few(skipped)}) is a class, such as {first_few(competition.classes, 3)}"
        )
    rows = (
        Row(f"external/{source.name}/{path}", label[path], "external", path, 0, (source / path).read_bytes())
        for path in paths
        if label[path] >= 0
    )
    return rows, skipped


def read_layout(raw: Path, settings: Settings) -> Layout:
    """Return the content of the folder without reading an image."""
    files = ImageFiles(raw)
    table = table_of_labels(raw, files)
    notes = unread_files_notes(raw, tables_too=not table)
    try:
        layout = layout_of_tables(raw, table, files, settings) if table else layout_of_class_folders(raw, settings)
    except UserError as error:
        if table:
            raise
        texts = first_few(sorted(path.name for path in raw.glob("*.txt")), 3)
        notes += [f"not read: {texts}: rename a table of labels to train.csv"] if texts else []
        raise UserError("; ".join([str(error), *notes])) from None
    notes = [*([] if layout.test_ids else [NO_TEST_NOTE]), *notes]
    competition = replace(layout.competition, notes=(*layout.competition.notes, *notes))
    return replace(layout, competition=competition)


def blank_submission(competition: Competition, ids: Sequence[str]) -> tuple[list[str], list[list[object]]]:
    """Header and rows of a sample submission."""
    classes = len(competition.classes)
    blank: list[object] = [0] if competition.predicts == "value" else [1 / classes] * classes
    if competition.target == "multi" and not competition.is_label_list:
        blank = [0 if competition.predicts == "label" else 0.5] * classes
    elif competition.predicts == "label":
        blank = [competition.label_values[0]]
    return [competition.id_column, *competition.prediction_columns], [[row_id, *blank] for row_id in ids]
