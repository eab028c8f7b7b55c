"""A source of twelve small photos in three classes."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from competition.data.convert.shard import Recipe, Shard, SourceImage, codecs


def write_photo(path: Path, seed: int, size: tuple[int, int] = (40, 30)) -> None:
    """A smooth picture, unlike that of any other seed."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with r00.jpg to r11.png."""
    for number in range(12):
        write_photo(tmp_path / "source" / f"r{number:02}.{('jpg', 'png')[number % 2]}", number)
    return tmp_path / "source"


@pytest.fixture
def rows(photos: Path) -> list[SourceImage]:
    """The photos in order; labels 0, 1, 2, 0, ..."""
    return [SourceImage(path.stem, n % 3, path.name, "") for n, path in enumerate(sorted(photos.iterdir()))]


@pytest.fixture
def recipe(photos: Path, tmp_path: Path) -> Recipe:
    return Recipe(str(photos), str(tmp_path / "target"), (16, 24), "jpeg", 92, "squash", "error", codecs())


@pytest.fixture
def shards(rows: list[SourceImage]) -> list[Shard]:
    """Two training shards of four images, one test shard of four."""
    unlabelled = [SourceImage(row.id, -1, row.path, row.stamp) for row in rows[8:]]
    return [
        Shard("train", "00", tuple(rows[:4])),
        Shard("train", "01", tuple(rows[4:8])),
        Shard("test", "00", tuple(unlabelled)),
    ]
