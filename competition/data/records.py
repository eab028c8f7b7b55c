"""TFRecord shards: strict reading of any, and per-fold writing of our own. Paths may be local or gs://."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd

from competition.config.errors import UserError, first
from competition.data import images
from competition.data.competition import Row

COUNT_IN_NAME = re.compile(r"-(\d+)\.tfrec(?:ord)?s?$")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Record:
    id: str
    label: int | None  # None: the record has no class
    image: bytes


def read(paths: Iterable[str]) -> Iterator[tuple[str, int, bytes]]:
    """(id, label, image bytes) of every record of our own shards, in order; label -1 when unknown."""
    for path in paths:
        for record in read_shard(path, labelled=True):
            yield record.id, -1 if record.label is None else record.label, record.image


def read_shard(path: str, labelled: bool) -> Iterator[Record]:
    """Every record of one shard, in order.

    TensorFlow says nothing when a file ends between two records, so what was read is compared with the count in the
    name (NN-COUNT.tfrec). Raises UserError with the file and the number of the record for every other damage as well.
    """
    for serialized, where in _serialized(path):
        yield _parsed(serialized, labelled, where)


def places(path: str) -> Iterator[tuple[str, int, int]]:
    """(id, first byte, bytes) of the encoded image of every record of a local, labelled shard, as it lies in the file."""
    at = 0
    for serialized, where in _serialized(path):
        record = _parsed(serialized, True, where)
        # A record is its length in 8 bytes, a check of it in 4, the Example, a check of that in 4.
        yield record.id, at + 12 + serialized.index(record.image), len(record.image)
        at += 16 + len(serialized)


def _serialized(path: str) -> Iterator[tuple[bytes, str]]:
    """(Example, how a message calls it) of every record of one shard, with the checks that read_shard speaks of."""
    import tensorflow as tf

    name = path.rsplit("/", 1)[-1]
    if not tf.io.gfile.exists(path):
        raise UserError(f"{path}: no such file; make download fetches it again")
    number = 0
    try:
        for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield serialized, f"{name}, record {number}"
            number += 1
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError):
        raise UserError(
            f"{name}, record {number}: {_damage(path, number)}; make download FORCE=1 fetches it again"
        ) from None
    said = COUNT_IN_NAME.search(name)
    if said and int(said[1]) != number:
        raise UserError(
            f"{name}: {number:,} records were read where the name says {int(said[1]):,}; "
            "the file was cut or is another one, make download FORCE=1 fetches it again"
        )


def _parsed(serialized: bytes, labelled: bool, where: str) -> Record:
    import tensorflow as tf

    try:
        feature = tf.train.Example.FromString(serialized).features.feature
    except Exception:  # protobuf's DecodeError has no public home
        raise UserError(f"{where}: it is no tf.train.Example; features id, image and class were expected") from None

    def one(key: str, kind: str) -> Any:
        found = feature[key].WhichOneof("kind") if key in feature else None
        values: Any = getattr(feature[key], kind).value if found == kind else []
        if len(values) != 1:
            has = f"{found} with {len(getattr(feature[key], found).value)} values" if found else "nothing"
            others = ", ".join(sorted(feature)) or "none"
            raise UserError(f"{where}: feature {key!r} should be one {kind}, {has} was found (features: {others})")
        return values[0]

    raw_id = one("id", "bytes_list")
    try:
        row_id = raw_id.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: the id {raw_id[:20]!r} is not UTF-8 text") from None
    label = int(one("class", "int64_list")) if labelled else None
    return Record(row_id, label, one("image", "bytes_list"))


def _damage(path: str, number: int) -> str:
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "rb") as file:
        head = file.read(64)
    if number == 0 and head[:2] == b"\x1f\x8b":
        return "the file is compressed with gzip, plain TFRecord was expected"
    if number == 0 and head.isascii() and b"\0" not in head:
        return "the file is text, TFRecord was expected"
    return "it is cut off or damaged"


def example(row_id: str, image: bytes, label: int | None) -> bytes:
    """One serialized tf.train.Example with features id, image and (unless None) class."""
    import tensorflow as tf

    def data(value: bytes) -> Any:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    feature = {"id": data(row_id.encode("utf-8")), "image": data(image)}
    if label is not None:
        feature["class"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_shard(path: str, records: Iterable[Record]) -> None:
    """One shard; a label of None leaves the feature `class` out, as in a competition's test files."""
    import tensorflow as tf

    tf.io.gfile.makedirs(path.rsplit("/", 1)[0])
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(example(record.id, record.image, record.label))


def write(
    rows: Iterable[Row], index: pd.DataFrame, folder: str, *, shard_bytes: int, progress: Progress | None = None
) -> list[str]:
    """Write the rows that `index` keeps into fold0-00-COUNT.tfrec, test-00-..., external-...; returns the names.

    A shard holds at most about `shard_bytes` bytes of images, in the order of the index. Images are written so that
    every decoder reads them alike (images.plain); an unreadable test image becomes a grey one, because no row is lost.
    `rows` must bring the images in the order of the index, with the digests in it; rows not in it are passed over.
    """
    import tensorflow as tf

    tf.io.gfile.makedirs(folder)
    shard_of, names = _plan(index, shard_bytes)
    place_in_index = {row_id: n for n, row_id in enumerate(index["id"])}
    digests, labels = index["sha256"].to_numpy(), index["label"].to_numpy()
    left = np.bincount(shard_of, minlength=len(names))
    writers: dict[int, Any] = {}
    done = -1
    for row in rows:
        here = place_in_index.get(row.id)
        if here is None:
            continue
        if here <= done or sha256(row.data).hexdigest() != digests[here]:
            raise UserError(f"image {row.id!r} is not what the index says; make prepare FORCE=1 makes the index again")
        done = here
        shard = int(shard_of[here])
        if shard not in writers:
            writers[shard] = tf.io.TFRecordWriter(f"{folder}/{names[shard]}.partial")
        writers[shard].write(example(row.id, _readable(row), int(labels[here])))
        left[shard] -= 1
        if left[shard] == 0:
            writers.pop(shard).close()
            tf.io.gfile.rename(f"{folder}/{names[shard]}.partial", f"{folder}/{names[shard]}", overwrite=True)
        if progress:
            progress(here + 1, len(index))
    if left.any():
        missing = index["id"][left[shard_of] > 0]
        raise UserError(f"{left.sum():,} images of the index were not found in the raw files, among {first(missing)}")
    return names


def _readable(row: Row) -> bytes:
    try:
        return images.plain(row.data)
    except images.BadImage:
        return images.blank()


def _plan(index: pd.DataFrame, shard_bytes: int) -> tuple[np.ndarray, list[str]]:
    """(shard number of every row (N,), names): each room cut into as few even shards as `shard_bytes` allows."""
    rooms = np.where(index["part"] == "train", "fold" + index["fold"].astype(str), index["part"])
    shard_of = np.full(len(index), -1)
    names: list[str] = []
    for room in sorted(set(rooms), key=lambda room: (not room.startswith("fold"), len(room), room)):
        here = np.flatnonzero(rooms == room)
        size = index["bytes"].to_numpy()[here]
        shards = math.ceil(size.sum() / shard_bytes)
        # By the middle of each image, so that shards come out even and none holds a few left-over images.
        numbers = np.unique((np.cumsum(size) - size / 2) * shards // size.sum(), return_inverse=True)[1]
        shard_of[here] = len(names) + numbers
        names += [f"{room}-{n:02}-{count}.tfrec" for n, count in enumerate(np.bincount(numbers))]
    return shard_of, names
