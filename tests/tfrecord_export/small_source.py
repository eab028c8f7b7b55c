"""Twelve small photos in three classes and their shards; needs neither TensorFlow nor pandas."""

from pathlib import Path

import numpy as np
from PIL import Image

from competition.storage import files
from competition.tfrecord_export.shard import Recipe, Shard, SourceImage


def write_photo(path: Path, seed: int, size: tuple[int, int] = (40, 30)) -> None:
    """A smooth picture, unlike that of any other seed."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path)


def write_photos(folder: Path) -> Path:
    """r00.jpg, r01.png, ... r11.png."""
    for number in range(12):
        write_photo(folder / f"r{number:02}.{('jpg', 'png')[number % 2]}", number)
    return folder


def rows_of(folder: Path) -> list[SourceImage]:
    """The photos in order; labels 0, 1, 2, 0, ..."""
    return [SourceImage(path.stem, n % 3, path.name, "") for n, path in enumerate(sorted(folder.iterdir()))]


def recipe_of(source: Path, target: Path) -> Recipe:
    return Recipe(str(source), str(target), (16, 24), "jpeg", 92, "squash", "error")


def shards_of(rows: list[SourceImage]) -> list[Shard]:
    """Two training shards of four images, one test shard of four."""
    unlabelled = [SourceImage(row.id, -1, row.path, row.stamp) for row in rows[8:]]
    parts = (("train", "00", rows[:4]), ("train", "01", rows[4:8]), ("test", "00", unlabelled))
    return [Shard(part, name, tuple(images)) for part, name, images in parts]


def digests(target: str | Path) -> dict[str, str | None]:
    """Path -> sha256 of all shards below the target."""
    names = [name for name in files.names(str(target)) if name.endswith(".tfrec")]
    return {name: files.digest(f"{target}/{name}") for name in names}


def stamps(target: str | Path) -> dict[str, tuple[int, int]]:
    """Path -> (inode, modification time) of all shards; equal values mean that the file was not touched."""
    status = {name: (Path(target) / name).stat() for name in digests(target)}
    return {name: (value.st_ino, value.st_mtime_ns) for name, value in status.items()}
