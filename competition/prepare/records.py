"""TFRecord shards: strict reading of any shard, and writing of one set of shards per fold. Paths are local or gs://."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd

from competition.config.errors import UserError, first_few
from competition.config.faults import fault_point
from competition.prepare import decoding as images
from competition.prepare.competition import Row

COUNT_IN_NAME = re.compile(r"-(\d+)\.tfrec(?:ord)?s?$")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Record:
    id: str
    label: int | None  # None: the record has no class
    image: bytes


def read(paths: Iterable[str]) -> Iterator[tuple[str, int, bytes]]:
    """Yield (id, label, image bytes) of all records of shards of `write`, in order; label -1 means unknown."""
    for path in paths:
        for record in read_shard(path, labelled=True):
            yield record.id, -1 if record.label is None else record.label, record.image


def read_shard(path: str, labelled: bool) -> Iterator[Record]:
    """Yield all records of one shard, in order.

    TensorFlow does not notice a file that ends between two records, so their number is compared with the count in the
    name (NN-COUNT.tfrec). Raises UserError with the file and the record number for this and all other damage.
    """
    for serialized, where in _serialized(path):
        yield _parsed(serialized, labelled, where)


def image_offsets(path: str) -> Iterator[tuple[str, int, int]]:
    """Yield (id, byte offset in the file, number of bytes) of the encoded image of each record of a local, labelled shard."""
    offset = 0
    for serialized, where in _serialized(path):
        record = _parsed(serialized, True, where)
        # A record: length (8 bytes), CRC of the length (4), the Example, CRC of the Example (4).
        yield record.id, offset + 12 + serialized.index(record.image), len(record.image)
        offset += 16 + len(serialized)


def _serialized(path: str) -> Iterator[tuple[bytes, str]]:
    """Yield (serialized Example, its name in error messages) of each record of one shard, with the checks of read_shard."""
    import tensorflow as tf

    name = path.rsplit("/", 1)[-1]
    if not tf.io.gfile.exists(path):
        raise UserError(f"{path}: no such file; make download fetches it again")
    number = 0
    try:
        for number, serialized in enumerate(tf.data.TFRecordDataset(path).as_numpy_iterator(), 1):
            yield serialized, f"{name}, record {number - 1}"
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError):
        with tf.io.gfile.GFile(path, "rb") as file:
            damage = images.record_damage(file.read(64), number)
        raise UserError(f"{name}, record {number}: {damage}; make download FORCE=1 fetches it again") from None
    count = COUNT_IN_NAME.search(name)
    if count and int(count[1]) != number:
        raise UserError(
            f"{name}: {number:,} records were read where the name says {int(count[1]):,}; "
            "the file was truncated or replaced; make download FORCE=1 fetches it again"
        )


def _parsed(serialized: bytes, labelled: bool, where: str) -> Record:
    import tensorflow as tf

    try:
        feature = tf.train.Example.FromString(serialized).features.feature
    except Exception:  # protobuf's DecodeError is not public
        raise UserError(f"{where}: not a tf.train.Example; features id, image and class were expected") from None

    def one(key: str, kind: str) -> Any:
        actual = feature[key].WhichOneof("kind") if key in feature else None
        values: Any = getattr(feature[key], kind).value if actual == kind else []
        if len(values) != 1:
            content = f"{actual} with {len(getattr(feature[key], actual).value)} values" if actual else "nothing"
            others = ", ".join(sorted(feature)) or "none"
            raise UserError(f"{where}: feature {key!r} should be one {kind}, {content} was found (features: {others})")
        return values[0]

    raw_id = one("id", "bytes_list")
    try:
        row_id = raw_id.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: the id {raw_id[:20]!r} is not UTF-8 text") from None
    label = int(one("class", "int64_list")) if labelled else None
    return Record(row_id, label, one("image", "bytes_list"))


def example(row_id: str, image: bytes, label: int | None) -> bytes:
    """Return a serialized tf.train.Example with features id, image and (unless None) class.

    By TensorFlow, as machines of Kaggle may lack a protobuf that builds messages at run time.
    """
    import tensorflow as tf

    def data(value: bytes) -> Any:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    feature = {"id": data(row_id.encode("utf-8")), "image": data(image)}
    if label is not None:
        feature["class"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True))


def write_shard(path: str, records: Iterable[Record]) -> None:
    """Write one shard; records with label None have no feature `class`, as in the test files of competitions."""
    import tensorflow as tf

    tf.io.gfile.makedirs(path.rsplit("/", 1)[0])
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(example(record.id, record.image, record.label))


def write(
    rows: Iterable[Row],
    index: pd.DataFrame,
    folder: str,
    *,
    shard_bytes: int,
    largest: int = images.LARGEST,
    progress: Progress = lambda *_: None,
) -> list[str]:
    """Write the rows of `index` into fold0-00-COUNT.tfrec, test-00-..., external-...; return the names.

    A shard holds at most about `shard_bytes` bytes of images, in the order of the index. Images are
    converted by decoding.normalized; unreadable test images are replaced by grey ones, because no row may be lost.
    `rows` must have the order and the digests of the index; rows that are not in the index are skipped.
    """
    import tensorflow as tf

    tf.io.gfile.makedirs(folder)
    shard_of, names = _plan(index, shard_bytes)
    index_position = {row_id: n for n, row_id in enumerate(index["id"])}
    digests, labels = index["sha256"].to_numpy(), index["label"].to_numpy()
    remaining = np.bincount(shard_of, minlength=len(names))
    writers: dict[int, Any] = {}
    last_position = -1
    for row in rows:
        position = index_position.get(row.id)
        if position is None:
            continue
        if position <= last_position or sha256(row.data).hexdigest() != digests[position]:
            raise UserError(f"image {row.id!r} does not match the index; make prepare FORCE=1 rebuilds the index")
        last_position = position
        shard = int(shard_of[position])
        if shard not in writers:
            writers[shard] = tf.io.TFRecordWriter(f"{folder}/{names[shard]}.partial")
        try:
            data = images.normalized(row.data, largest)
        except images.BadImage:
            data = images.blank()
        writers[shard].write(example(row.id, data, int(labels[position])))
        remaining[shard] -= 1
        if remaining[shard] == 0:
            writers.pop(shard).close()
            fault_point("records.before_rename", names[shard])
            tf.io.gfile.rename(f"{folder}/{names[shard]}.partial", f"{folder}/{names[shard]}", overwrite=True)
        progress(position + 1, len(index))
    if remaining.any():
        missing = index["id"][remaining[shard_of] > 0]
        raise UserError(
            f"{remaining.sum():,} images of the index were not found in the raw files, among {first_few(missing)}"
        )
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
