"""Adapter for any images with tables or class folders, in a zip or a directory. Detects what is not configured, and reports it.

With tables:         train.csv, test.csv, sample_submission.csv (classes.csv if labels have names), images anywhere.
                     Without test.csv the images in a folder test.../ are the test images.
With class folders:  train/<class>/..., test/...   or   <class>/..., test/...
Without test images there is cross-validation only: everything but a submission.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath

from competition.config.errors import UserError, first_few
from competition.files.image_codec import SUFFIXES
from competition.prepare.adapter_types import SAMPLE, Competition, Layout, Part, Row, Settings
from competition.prepare.adapters.class_folders import layout_of_class_folders
from competition.prepare.adapters.image_paths import ImageFiles, image_paths, unread_files_notes
from competition.prepare.adapters.labelled_tables import layout_of_tables, table_of_labels
from competition.prepare.adapters.raw_source import fetch_source
from competition.prepare.adapters.tables import write_csv

NO_TEST_NOTE = "there are no test images: cross-validation only, with honest scores and a report but no submission"


def download(raw: Path, settings: Settings, fetch: Callable[[str, Path], None]) -> None:
    """Copy or unpack `source` (or fetch `slug`) into `raw`; write a sample submission if there is none.

    If everything is in one folder, as in many zip files, its content moves up, out of each of several nested ones.
    Raises UserError if there is no such source, or for what `read_layout` refuses.
    """
    fetch_source(raw, settings, fetch)
    while folder := _only_folder(raw):
        lifted = raw / ".lifted"
        folder.rename(lifted)
        for path in lifted.iterdir():
            path.rename(raw / path.name)
        lifted.rmdir()
    if not (raw / SAMPLE).exists():
        layout = read_layout(raw, settings)
        write_csv(raw / SAMPLE, *blank_submission(layout.competition, layout.test_ids))


def _only_folder(raw: Path) -> Path | None:
    """The folder that holds everything in `raw`; None if there is none, or if it is train/, test/ or a class: a folder of images."""
    entries = [path for path in raw.iterdir() if not path.name.startswith((".", "__MACOSX"))]
    if len(entries) != 1 or not entries[0].is_dir() or entries[0].name in ("train", "test"):
        return None
    return None if all(path.suffix.lower() in SUFFIXES for path in entries[0].iterdir()) else entries[0]


def describe(raw: Path, settings: Settings) -> Competition:
    """Return the description of the competition. Raises UserError for what `read_layout` refuses."""
    return read_layout(raw, settings).competition


def rows(raw: Path, settings: Settings) -> Iterator[Row]:
    """Yield the labelled rows, then the test rows. Raises UserError for what `read_layout` refuses."""
    layout = read_layout(raw, settings)
    apart = layout.validation if settings.validation == "apart" else ()
    labelled = zip(layout.ids, layout.labels, layout.groups, strict=True)
    for row_id, label, group in chain(labelled, ((row_id, -1, "") for row_id in layout.test_ids)):
        part: Part = "test" if label < 0 else "val" if row_id in apart else "train"
        path = layout.path_of[row_id]
        yield Row(row_id, label, part, path, 0, (raw / path).read_bytes() if path else b"", group)


def external_rows(name: str, source: Path, competition: Competition) -> tuple[Iterator[Row], list[str]]:
    """Return (rows, skipped folders) of class folders with extra training images, matched by class name or label value.

    name: of prepare.external. Ids are external/<name>/<path>, so that they differ from those of the competition.
    A folder whose name differs in letter case or by _ for a blank is of that class, unless several are as similar.
    Raises UserError if no folder is a class, or if the competition has several labels per image or numbers.
    """
    if competition.target in ("multi", "regression"):
        raise UserError(f"prepare.external: {source} has classes, the target is {competition.target}; leave it empty")
    exact: dict[str, int] = {}
    similar: dict[str, set[int]] = defaultdict(set)
    for texts in (competition.classes, competition.label_values):
        for number, text in enumerate(texts):
            exact[text] = number
            similar[text.replace("_", " ").casefold()].add(number)
    paths = image_paths(source)
    label = dict.fromkeys(paths, -1)
    for path in paths:
        for folder in PurePosixPath(path).parts[:-1]:  # the folder nearest to the image whose name is a class
            numbers = {exact[folder]} if folder in exact else similar[folder.replace("_", " ").casefold()]
            if len(numbers) == 1:
                (label[path],) = numbers
    skipped = sorted({PurePosixPath(path).parent.as_posix() for path in paths if label[path] < 0})
    if all(value < 0 for value in label.values()):
        raise UserError(
            f"{source}: none of its folders ({first_few(skipped)}) is a class, such as {first_few(competition.classes, 3)}"
        )
    rows = (
        Row(f"external/{name}/{path}", label[path], "external", path, 0, (source / path).read_bytes())
        for path in paths
        if label[path] >= 0
    )
    return rows, skipped


def read_layout(raw: Path, settings: Settings) -> Layout:
    """Return the content of the folder without reading an image. Raises UserError for what is wrong or not certain in it."""
    files = ImageFiles(raw)
    table = table_of_labels(raw, files)
    notes = unread_files_notes(raw, tables_too=not table)
    try:
        layout = (
            layout_of_tables(raw, table, files, settings) if table else layout_of_class_folders(files.paths, settings)
        )
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
