"""The shard function: converts the photos of one shard to TFRecord files, one per image size.

It needs neither TensorFlow nor pandas. Every engine (processes, Apache Beam) calls this function with whole shards, so all
engines write the same bytes. A shard is finished when its manifest exists; the manifest is written last.
"""

import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from hashlib import sha256
from typing import Literal

from competition.config.errors import UserError, counted
from competition.files import image_codec as images
from competition.prepare.tfrecord_format import serialize_example, write_record
from competition.storage import files

FORMAT = 2  # increase it when equal input would give other bytes
MANIFESTS = "manifests"  # folder of the shard manifests in the target


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One image file of the source."""

    id: str
    label: int  # class number; -1 = unknown, the record gets no feature `class`
    path: str  # relative to the source
    stamp: str  # size and modification time of a local file, "" if unknown; a change makes the shard stale


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

    def digest_fields(self) -> dict[str, object]:
        """Return whatever the bytes of a shard depend on besides its rows: all but the target."""
        return {key: value for key, value in asdict(self).items() if key != "target"} | {"format": FORMAT}


@dataclass(frozen=True)
class Shard:
    """One element of the work: a name and rows."""

    part: str  # train or test
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


def make_shards(part: str, rows: Sequence[SourceImage], count: int) -> list[Shard]:
    """Distribute rows over `count` shards whose sizes differ by at most 1, by ids alone: the same source gives the same shards.

    Each class is spread evenly (counts differ by at most 1), and the rows of a shard are in random order.
    """
    random_order = {row.id: sha256(row.id.encode()).digest() for row in rows}
    # Dealt like cards, one class after the other, without starting again at the first shard.
    by_class = sorted(rows, key=lambda row: (row.label, random_order[row.id]))
    buckets = [sorted(by_class[number::count], key=lambda row: random_order[row.id]) for number in range(count)]
    width = max(2, len(str(count - 1)))
    return [Shard(part, f"{number:0{width}}", tuple(bucket)) for number, bucket in enumerate(buckets)]


def shard_digest(shard: Shard, recipe: Recipe) -> str:
    """Return the digest of everything that the files of a shard depend on."""
    state = sha256(json.dumps(recipe.digest_fields(), sort_keys=True).encode())
    for row in shard.rows:
        state.update(json.dumps(astuple(row)).encode())
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

    Memory: one image at all sizes.  Raises UserError for an unreadable labelled image if `bad_images` is "error".
    """
    if finished := finished_shard(shard, recipe):
        return finished
    dropped: list[str] = []
    replaced: list[str] = []
    count = 0
    with ExitStack() as stack:
        temporaries = [stack.enter_context(files.temporary_file(recipe.target)) for _ in recipe.sizes]
        with ExitStack() as open_files:
            outputs = [open_files.enter_context(temporary.open("wb")) for temporary in temporaries]
            for row in shard.rows:
                encoded = encoded_at_sizes(row, recipe, dropped, replaced)
                label = row.label if row.label >= 0 else None
                for output, image in zip(outputs, encoded):  # none of a dropped image
                    write_record(output, serialize_example({"id": row.id.encode(), "image": image, "class": label}))
                count += bool(encoded)
        if not count:
            raise UserError(f"{shard.part}-{shard.name}: none of its {counted(len(shard.rows), 'image')} can be read")
        written = {}
        for size, temporary in zip(recipe.sizes, temporaries, strict=True):
            # Named as in Kaggle's competitions: tfrecords-jpeg-224x224/train/03-224x224-798.tfrec
            square = f"{size}x{size}"
            name = f"tfrecords-{recipe.kind}-{square}/{shard.part}/{shard.name}-{square}-{count}.tfrec"
            written[name] = str(files.digest(str(temporary)))
            files.publish(temporary, f"{recipe.target}/{name}")
            if files.is_remote(recipe.target) and files.digest(f"{recipe.target}/{name}") != written[name]:
                raise UserError(f"{recipe.target}/{name} differs from what was uploaded; run the same command again")
    outcome = Outcome(shard.part, shard.name, written, count, tuple(dropped), tuple(replaced), reused=False)
    manifest = {"digest": shard_digest(shard, recipe), **asdict(outcome), "depends": recipe.digest_fields()}
    files.write_json(f"{recipe.target}/{shard.manifest}", manifest)
    return outcome


def encoded_at_sizes(row: SourceImage, recipe: Recipe, dropped: list[str], replaced: list[str]) -> list[bytes]:
    """Return the image of a row, encoded at each size, or [] if it is dropped.

    dropped, replaced: get the id of an image that is dropped or becomes a grey one.
    """
    try:
        pictures = images.resized(files.read_bytes(f"{recipe.source}/{row.path}"), recipe.sizes, recipe.fit)
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


def convert_shards(shards: Sequence[Shard], recipe: Recipe, processes: int) -> Iterator[Outcome]:
    """Convert the shards in several processes of this machine; yield the outcome of each as it finishes.

    Raises UserError of a shard, or if a process is killed. Works under the start method "spawn".
    """
    context = multiprocessing.get_context("spawn")  # a fork of a process with TensorFlow's threads may hang
    pool = ProcessPoolExecutor(min(processes, len(shards)), mp_context=context)
    try:
        # The largest first, so that no process works alone at the end.
        order = sorted(shards, key=lambda shard: -len(shard.rows))
        for future in as_completed([pool.submit(convert_shard, shard, recipe) for shard in order]):
            yield future.result()
    except BrokenProcessPool:
        raise UserError(
            "a conversion process was killed, perhaps for lack of memory; the same command continues, if need be with lower "
            "convert.processes or convert.shard_megabytes"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
