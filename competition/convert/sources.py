"""What is converted: a folder, local or on gs://, of images with tables, of class folders, or of TFRecords in either schema."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from competition.config.errors import UserError, counted, first_few
from competition.convert.shard import SourceImage
from competition.prepare.adapter_types import Competition, Settings
from competition.prepare.adapters import ADAPTERS, folder
from competition.prepare.adapters.class_folders import split_named
from competition.prepare.adapters.flowers import DESCRIPTION, FOLDER, label_competition, of_converted
from competition.prepare.adapters.image_files import ImageFiles
from competition.prepare.adapters.tables import csv_text
from competition.prepare.decoding import SUFFIXES
from competition.prepare.tfrecord_format import read_example, read_records
from competition.storage import files

RECORDS = re.compile(r"\.tfrec(ord)?s?$|-\d{5}-of-\d{5}$")
TABLES = (".csv", ".tsv")
SAMPLE, SOLUTION = "sample_submission.csv", "private/solution.csv"
Rows = dict[str, list[SourceImage]]  # part -> its images


@dataclass(frozen=True)
class Source:
    """rows: by part (train, val, test).  tables: path in the target -> content of files that are copied unchanged."""

    competition: Competition
    rows: Mapping[str, Sequence[SourceImage]]
    tables: Mapping[str, bytes]


def read_source(source: str, settings: Settings) -> Source:
    """List all images of the source with ids and labels, without decoding any. Raises UserError."""
    paths = [path for path in files.names(source) if not any(name.startswith(".") for name in path.split("/"))]
    if not paths:
        raise UserError(f"convert.source: {source} holds no file; a folder with images or TFRecords was expected")
    records = [path for path in paths if RECORDS.search(path)]
    competition, rows = _from_records(source, records, settings) if records else _from_images(source, paths, settings)
    counts = Counter(row.id for part_rows in rows.values() for row in part_rows)
    if twice := [row_id for row_id, count in counts.items() if count > 1]:
        raise UserError(f"{counted(len(twice), 'id')} of several rows, {first_few(twice)}; ids must differ")
    tables = {name: files.read_bytes(f"{source}/{name}") for name in (SAMPLE, SOLUTION) if name in paths}
    if SAMPLE not in tables:
        header, blanks = folder.blank_submission(competition, [row.id for row in rows.get("test", ())])
        tables[SAMPLE] = csv_text(header, blanks).encode()
    return Source(competition, {part: part_rows for part, part_rows in rows.items() if part_rows}, tables)


def _from_images(source: str, paths: Sequence[str], settings: Settings) -> tuple[Competition, Rows]:
    with _local_names(source, paths) as raw:
        layout = folder.read_layout(raw, settings)
        image_files = ImageFiles(raw)
        ids, labels, _ = layout.train
        id_column = layout.competition.id_column
        train, test = image_files.find(ids, "train", id_column), image_files.find(layout.test, "test", id_column)
    labelled = zip(ids, labels, strict=True)
    return layout.competition, {
        "train": [SourceImage(one, label, train[one], _stamp(source, train[one])) for one, label in labelled],
        "test": [SourceImage(one, -1, path, _stamp(source, path)) for one, path in test.items()],
    }


@contextmanager
def _local_names(source: str, paths: Sequence[str]) -> Iterator[Path]:
    """A local folder with the tables and the file names of the source; on gs:// the images in it are empty."""
    if not files.is_remote(source):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory() as temporary:
        for path in paths:
            local = Path(temporary) / path
            if local.suffix in TABLES or local.suffix.lower() in SUFFIXES:
                local.parent.mkdir(parents=True, exist_ok=True)
                local.write_bytes(files.read_bytes(f"{source}/{path}") if local.suffix in TABLES else b"")
        yield Path(temporary)


def _from_records(source: str, paths: Sequence[str], settings: Settings) -> tuple[Competition, Rows]:
    rows: Rows = {"train": [], "val": [], "test": []}
    name_of: dict[int, str] = {}  # class number -> name stated in the records
    # Of the folders tfrecords-jpeg-HxW the one of the asked or the largest size; all files if there is no such folder.
    size_of = {path: int(match[1]) for path in paths if (match := FOLDER.fullmatch(path.split("/")[0]))}
    if size_of and settings.image_size and settings.image_size not in size_of.values():
        raise UserError(f"competition.image_size: {settings.image_size} is not among {sorted(set(size_of.values()))}")
    size = settings.image_size or max(size_of.values(), default=0)
    for path in (path for path in size_of or paths if size_of.get(path, size) == size):
        *folders, name = path.split("/")
        named = [split_named(one) for one in (*reversed(folders), name)]
        part, stamp = next(filter(None, named), ""), _stamp(source, path)
        if not part:
            raise UserError(f"{path}: it belongs to no part; put TFRecords into folders train/, val/ and test/")
        with files.opened(f"{source}/{path}") as file:
            for number, (offset, serialized) in enumerate(read_records(file, path)):
                where = f"{path}, record {number}"
                record = read_example(serialized, where)
                row_id = record.id or f"{PurePosixPath(path).name.split('.')[0]}-{number}"
                if part != "test" and record.label is None:
                    raise UserError(f"{where}: it has no label; only files of the part test may lack labels")
                if record.label is not None and record.class_name:
                    known = name_of.setdefault(record.label, record.class_name)
                    if known != record.class_name:
                        raise UserError(
                            f"{where}: class {record.label + 1} is called {record.class_name!r} here and {known!r} before"
                        )
                label = -1 if part == "test" or record.label is None else record.label
                rows[part].append(SourceImage(row_id, label, path, stamp, offset, len(serialized)))
    if not rows["train"]:
        raise UserError(f"convert.source: {len(paths)} TFRecord files found in {source}, none belongs to part train")
    is_local = not files.is_remote(source)
    if is_local and (Path(source) / DESCRIPTION).exists():  # of an earlier conversion
        return of_converted(Competition.load(Path(source) / DESCRIPTION), settings), rows
    if settings.adapter != "folder" and is_local:
        return ADAPTERS[settings.adapter].describe(Path(source), settings), rows
    count = 1 + max(row.label for part_rows in rows.values() for row in part_rows)
    return label_competition(settings, [name_of.get(number, str(number)) for number in range(count)]), rows


def _stamp(source: str, path: str) -> str:
    if files.is_remote(source):
        return ""
    status = (Path(source) / path).stat()
    return f"{status.st_size}@{status.st_mtime_ns}"
