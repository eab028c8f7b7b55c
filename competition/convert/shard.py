"""The shard function: converts the rows of one shard to TFRecord files, one per image size, and verifies them.

It needs neither TensorFlow nor pandas. Every engine (processes, Apache Beam) calls this function with whole shards, so all
engines write the same bytes. A shard is finished when its manifest exists; the manifest is written last.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Literal

from PIL import Image, features

from competition.config.errors import UserError, counted
from competition.prepare import decoding as images
from competition.prepare.tfrecord_format import read_example, read_records, serialize_example, write_record
from competition.storage import files

FORMAT = 1  # increase it when equal input would give other bytes
MANIFESTS = "manifests"  # folder of the shard manifests in the target


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One image of the source: a file, or the Example at `offset` of a TFRecord file."""

    id: str
    label: int  # class number; -1 = unknown, the record gets no feature `class`
    path: str  # relative to the source
    stamp: str  # size and modification time of a local file, "" if unknown; a change makes the shard stale
    offset: int = -1  # -1: the whole file is the image
    length: int = 0  # bytes of the Example


@dataclass(frozen=True)
class Recipe:
    """How images are converted; the same for all shards."""

    source: str  # folder, local or gs://
    target: str
    sizes: tuple[int, ...]  # pixels
    kind: Literal["jpeg", "png"]
    quality: int
    fit: images.Fit
    bad_images: Literal["error", "drop"]
    largest: int  # pixels of one source image, at most
    codecs: str  # of the environment that converts, see `codecs`

    def digest_fields(self) -> dict[str, object]:
        """Return whatever the bytes of a shard depend on besides its rows: all but the target."""
        return {key: value for key, value in asdict(self).items() if key != "target"} | {"format": FORMAT}


@dataclass(frozen=True)
class Shard:
    """One element of the work: a name and rows."""

    part: str  # train, val or test
    name: str  # number with leading zeros: "03"
    rows: tuple[SourceImage, ...]

    @property
    def manifest(self) -> str:
        return f"{MANIFESTS}/{self.part}-{self.name}.json"


@dataclass(frozen=True)
class Outcome:
    """files: path relative to the target -> sha256.  counts of images.  reused: the shard was already finished."""

    part: str
    name: str
    files: dict[str, str]
    written: int
    dropped: tuple[str, ...]  # ids of unreadable labelled images
    replaced: tuple[str, ...]  # ids of unreadable test images, which became grey images
    reused: bool


def make_shards(part: str, rows: Sequence[SourceImage], count: int, stratify: bool) -> list[Shard]:
    """Distribute rows over `count` shards whose sizes differ by at most 1, by ids alone: the same source gives the same shards.

    stratify: each class is spread evenly (counts differ by at most 1) and the rows of a shard are in random order,
    which depends on the ids only; otherwise shards are consecutive runs of the rows.
    """
    if stratify:
        random_order = {row.id: sha256(row.id.encode()).digest() for row in rows}
        # Dealt like cards, one class after the other, without starting again at the first shard.
        by_class = sorted(rows, key=lambda row: (row.label, random_order[row.id]))
        buckets = [sorted(by_class[number::count], key=lambda row: random_order[row.id]) for number in range(count)]
    else:
        bounds = [len(rows) * n // count for n in range(count + 1)]
        buckets = [list(rows[start:end]) for start, end in pairwise(bounds)]
    width = max(2, len(str(count - 1)))
    return [Shard(part, f"{number:0{width}}", tuple(bucket)) for number, bucket in enumerate(buckets)]


def codecs() -> str:
    """Return the versions of the decoder and encoder in this environment; others may give other bytes."""
    # Not features.version("zlib"), which depends on what else the process has loaded.
    jpeg, png = (features.version(name) or "other" for name in ("libjpeg_turbo", "zlib_ng"))
    return f"Pillow {Image.__version__}, libjpeg-turbo {jpeg}, zlib-ng {png}"


def shard_digest(shard: Shard, recipe: Recipe) -> str:
    """Return the digest of everything that the files of a shard depend on."""
    state = sha256(json.dumps(recipe.digest_fields(), sort_keys=True).encode())
    for row in shard.rows:
        state.update(json.dumps([row.id, row.label, row.path, row.stamp, row.offset, row.length]).encode())
    return state.hexdigest()


def finished_shard(shard: Shard, recipe: Recipe) -> Outcome | None:
    """Return the outcome of an earlier run if all files exist with the recorded digests and nothing they depend on changed."""
    recorded = files.read_json(f"{recipe.target}/{shard.manifest}")
    if not isinstance(recorded, dict) or recorded.get("digest") != shard_digest(shard, recipe):
        return None
    written: dict[str, str] = recorded["files"]
    if any(files.digest(f"{recipe.target}/{name}") != digest for name, digest in written.items()):
        return None
    counts = recorded["written"], tuple(recorded["dropped"]), tuple(recorded["replaced"])
    return Outcome(shard.part, shard.name, written, *counts, reused=True)


def convert_shard(shard: Shard, recipe: Recipe) -> Outcome:
    """Write the files of one shard unless it is finished. Calling it twice at the same time is harmless.

    Memory: one image at all sizes, and a digest per image.
    Raises UserError for an unreadable labelled image if `bad_images` is "error", and if a file does not read back.
    """
    if recipe.codecs != codecs():
        raise UserError(f"this worker has {codecs()}, the work list asks for {recipe.codecs}; install the same here")
    if finished := finished_shard(shard, recipe):
        return finished
    dropped: list[str] = []
    replaced: list[str] = []
    records: list[tuple[str, int, list[str]]] = []  # id, label, sha256 of the image at each size
    with ExitStack() as stack:
        temporaries = [stack.enter_context(files.temporary_file(recipe.target)) for _ in recipe.sizes]
        with ExitStack() as open_files:
            outputs = [open_files.enter_context(temporary.open("wb")) for temporary in temporaries]
            for row in shard.rows:
                encoded = encoded_at_sizes(row, recipe, dropped, replaced)
                if not encoded:
                    continue
                label = row.label if row.label >= 0 else None
                for output, image in zip(outputs, encoded, strict=True):
                    write_record(output, serialize_example({"id": row.id.encode(), "image": image, "class": label}))
                records.append((row.id, row.label, [sha256(image).hexdigest() for image in encoded]))
        if not records:
            raise UserError(f"{shard.part}-{shard.name}: none of its {counted(len(shard.rows), 'image')} can be read")
        written = {}
        for number, (size, temporary) in enumerate(zip(recipe.sizes, temporaries, strict=True)):
            # Named as in Kaggle's competitions: tfrecords-jpeg-224x224/train/03-224x224-798.tfrec
            square = f"{size}x{size}"
            name = f"tfrecords-{recipe.kind}-{square}/{shard.part}/{shard.name}-{square}-{len(records)}.tfrec"
            verify_file(temporary, name, [(row_id, label, digests[number]) for row_id, label, digests in records])
            written[name] = str(files.digest(str(temporary)))
            files.publish(temporary, f"{recipe.target}/{name}")
            if files.is_remote(recipe.target) and files.digest(f"{recipe.target}/{name}") != written[name]:
                raise UserError(f"{recipe.target}/{name} differs from what was uploaded; run the same command again")
    outcome = Outcome(shard.part, shard.name, written, len(records), tuple(dropped), tuple(replaced), reused=False)
    manifest = {"digest": shard_digest(shard, recipe), **asdict(outcome), "depends": recipe.digest_fields()}
    files.write_json(f"{recipe.target}/{shard.manifest}", manifest)
    return outcome


def verify_file(path: Path, name: str, expected: Sequence[tuple[str, int, str]]) -> None:
    """Read a TFRecord file back; raise UserError unless it has exactly the expected ids, labels and sha256 of images, in order."""
    number = 0
    with path.open("rb") as file:
        for number, (_, serialized) in enumerate(read_records(file, name), 1):
            where = f"{name}, record {number - 1}"
            record = read_example(serialized, where)
            label = -1 if record.label is None else record.label
            actual = (record.id, label, sha256(record.image).hexdigest())
            if number > len(expected) or actual != expected[number - 1]:
                raise UserError(f"{where}: it differs from what was written; check the disk")
    if number != len(expected):
        raise UserError(f"{name}: {number:,} records were read back, {len(expected):,} were written; check the disk")


def encoded_at_sizes(row: SourceImage, recipe: Recipe, dropped: list[str], replaced: list[str]) -> list[bytes]:
    """Return the image of a row, encoded at each size, or [] if it is dropped.

    dropped, replaced: get the id of an image that is dropped or becomes a grey one.
    """
    path = f"{recipe.source}/{row.path}"
    if row.offset < 0:
        data = files.read_bytes(path)
    else:
        with files.opened(path) as file:
            file.seek(row.offset)
            serialized = file.read(row.length)
        data = read_example(serialized, f"{row.path}, byte {row.offset}").image
    try:
        pictures = images.resized(data, recipe.sizes, recipe.fit, recipe.largest)
    except images.BadImage as problem:
        if row.label < 0:  # a test row is never lost
            replaced.append(row.id)
            pictures = images.resized(images.BLANK, recipe.sizes, recipe.fit)
        elif recipe.bad_images == "drop":
            dropped.append(row.id)
            return []
        else:
            raise UserError(
                f"image {row.id!r} ({row.path}): {problem}; repair or remove it, or set convert.bad_images=drop"
            ) from None
    return [images.encode(picture, recipe.kind, quality=recipe.quality) for picture in pictures]
