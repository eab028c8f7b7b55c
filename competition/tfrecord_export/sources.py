"""What is converted: a folder of images, local or on gs://, with tables or in class folders, as the adapter `folder` reads it."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from competition.config.errors import UserError
from competition.files.image_codec import FORMAT_NAMES, SUFFIXES
from competition.prepare.adapter_types import SAMPLE, SOLUTION, Competition, Settings
from competition.prepare.adapters import folder
from competition.prepare.adapters.tables import csv_text
from competition.storage import files
from competition.tfrecord_export.shard import SourceImage

TABLES = (".csv", ".tsv")


@dataclass(frozen=True)
class Source:
    """rows: by part (train, test).  tables: path in the target -> content of files that are copied unchanged."""

    competition: Competition
    rows: Mapping[str, Sequence[SourceImage]]
    tables: Mapping[str, bytes]


def read_source(source: str, settings: Settings) -> Source:
    """List all images of the source with ids and labels, without decoding any. Raises UserError."""
    paths = [path for path in files.names(source) if not any(name.startswith(".") for name in path.split("/"))]
    if not any(Path(path).suffix.lower() in SUFFIXES for path in paths):
        raise UserError(f"convert.source: {source} holds no {FORMAT_NAMES} image; name a folder of photos")
    with _local_names(source, paths) as raw:
        layout = folder.read_layout(raw, settings)

    def image_of(row_id: str, label: int) -> SourceImage:
        path, stamp = layout.path_of[row_id], ""
        if not files.is_remote(source):
            status = (Path(source) / path).stat()
            stamp = f"{status.st_size}@{status.st_mtime_ns}"
        return SourceImage(row_id, label, path, stamp)

    rows = {
        "train": list(map(image_of, layout.ids, layout.labels)),
        "test": [image_of(row_id, -1) for row_id in layout.test_ids],
    }
    tables = {name: files.read_bytes(f"{source}/{name}") for name in (SAMPLE, SOLUTION) if name in paths}
    if SAMPLE not in tables:
        tables[SAMPLE] = csv_text(*folder.blank_submission(layout.competition, layout.test_ids)).encode()
    return Source(layout.competition, {part: part_rows for part, part_rows in rows.items() if part_rows}, tables)


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
