"""TFRecord shards: strict reading of any shard, local or on gs://, and writing of one set of shards per fold."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.config.faults import fault_point
from competition.files import image_codec as images
from competition.prepare.adapter_types import Row
from competition.prepare.tfrecord_format import Record, read_example, read_records, serialize_example, write_record
from competition.storage import files

Progress = Callable[[int, int], None]


def read_shard(path: str, labelled: bool = True) -> Iterator[Record]:
    """Yield all records of one shard, local or on gs://, in order.

    labelled: whether a record without a label is an error; if not, labels are left out.
    Raises UserError with the file and the record number for any damage.
    """
    name = path.rsplit("/", 1)[-1]
    if not files.exists(path):
        raise UserError(f"{path}: no such file; make download fetches it again")
    required = ("id", "image", "class") if labelled else ("id", "image")
    with files.opened(path) as file:
        for number, (offset, serialized) in enumerate(read_records(file, name)):
            record = read_example(serialized, f"{name}, record {number}", required)
            label = record.label if labelled else None
            yield replace(record, label=label, offset=offset + serialized.index(record.image))


def write_shard(path: str, records: Iterable[Record]) -> None:
    """Write one local shard; records with label None have no feature `class`, as in the test files of competitions."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("wb") as file:
        for record in records:
            features = {"id": record.id.encode(), "image": record.image, "class": record.label}
            write_record(file, serialize_example(features))


def write(
    rows: Iterable[Row], index: pd.DataFrame, folder: str, shard_bytes: int, progress: Progress = lambda *_: None
) -> list[str]:
    """Write the rows of `index` into fold0-00-COUNT.tfrec, test-00-..., external-...; return the names.

    A shard holds at most about `shard_bytes` bytes of images, in the order of the index. Images are
    converted by image_codec.normalized; unreadable test images are replaced by grey ones, because no row may be lost.
    `rows` must have the order and the digests of the index; rows that are not in the index are skipped.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    shard_of, names = _plan(index, shard_bytes)
    index_position = {row_id: n for n, row_id in enumerate(index["id"])}
    digests, labels, problems = (index[column].to_numpy() for column in ("sha256", "label", "problem"))
    remaining = np.bincount(shard_of, minlength=len(names))
    writers: dict[int, BinaryIO] = {}
    last_position = -1
    with ExitStack() as unfinished:
        for row in rows:
            position = index_position.get(row.id)
            if position is None:
                continue
            if position <= last_position or sha256(row.data).hexdigest() != digests[position]:
                raise UserError(f"image {row.id!r} does not match the index; make prepare FORCE=1 rebuilds the index")
            last_position = position
            shard = int(shard_of[position])
            if shard not in writers:
                writers[shard] = unfinished.enter_context(Path(f"{folder}/{names[shard]}.partial").open("wb"))
            data = images.BLANK if problems[position] else images.normalized(row.data)
            features: dict[str, bytes | int] = {"id": row.id.encode(), "image": data, "class": int(labels[position])}
            write_record(writers[shard], serialize_example(features))
            remaining[shard] -= 1
            if remaining[shard] == 0:
                writers.pop(shard).close()
                fault_point("records.before_rename", names[shard])
                Path(f"{folder}/{names[shard]}.partial").replace(f"{folder}/{names[shard]}")
            progress(position + 1, len(index))
    if remaining.any():
        missing = index["id"][remaining[shard_of] > 0]
        raise UserError(f"{counted(int(remaining.sum()), 'image')} of the index missing in raw/, {first_few(missing)}")
    return names


def _plan(index: pd.DataFrame, shard_bytes: int) -> tuple[np.ndarray, list[str]]:
    """Return (shard number of each row (N,), shard names): each fold or part in as few even shards as `shard_bytes` allows."""
    prefixes = np.where(index["part"] == "train", "fold" + index["fold"].astype(str), index["part"])
    shard_of = np.full(len(index), -1)
    names: list[str] = []
    for prefix in sorted(set(prefixes), key=lambda name: (not name.startswith("fold"), len(name), name)):
        rows = np.flatnonzero(prefixes == prefix)
        size = index["bytes"].to_numpy()[rows]
        shards = math.ceil(size.sum() / shard_bytes)
        # Assign by the midpoint of each image, so that shards are even and none holds only a few remaining images.
        numbers = np.unique((np.cumsum(size) - size / 2) * shards // size.sum(), return_inverse=True)[1]
        shard_of[rows] = len(names) + numbers
        names += [f"{prefix}-{n:02}-{count}.tfrec" for n, count in enumerate(np.bincount(numbers))]
    return shard_of, names
