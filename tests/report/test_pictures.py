"""Pictures of the report come from the cache of decoded images."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import competition

from competition.images.decoded_cache import cache_file
from competition.prepare.prepared import Prepared
from competition.report.pictures import training_pixels

IDS = np.array([f"id ü {n:02}" for n in range(12)])


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return Prepared(tmp_path, competition(), pd.DataFrame({"id": IDS, "part": "train"}), "digest")


def fill_cache(prepared: Prepared, folder: Path, size: int) -> None:
    """Image n has the value n in all pixels."""
    file = cache_file(folder, prepared.digest, IDS, size, "squash")
    file.parent.mkdir(exist_ok=True)
    np.save(file, np.repeat(np.arange(len(IDS), dtype=np.uint8), size * size * 3).reshape(-1, size, size, 3))


def test_pictures_are_those_of_the_largest_cached_size_that_a_page_shows_in_index_order(
    prepared: Prepared, tmp_path: Path
) -> None:
    for size in (16, 32, 256):
        fill_cache(prepared, tmp_path / "cache", size)
    pixels = training_pixels(prepared, [256, 64, 32, 16], "squash", tmp_path / "cache")
    assert pixels is not None and pixels.shape == (len(IDS), 32, 32, 3)
    assert pixels[np.array([7, 2])][:, 0, 0, 0].tolist() == [7, 2]


def test_without_a_cache_of_these_images_there_are_no_pictures(prepared: Prepared, tmp_path: Path) -> None:
    assert training_pixels(prepared, [16], "squash", tmp_path / "cache") is None
    fill_cache(prepared, tmp_path / "cache", 16)
    assert training_pixels(prepared, [16], "crop", tmp_path / "cache") is None
    (file,) = (tmp_path / "cache").glob("*.npy")
    file.write_bytes(file.read_bytes()[:-1])
    assert training_pixels(prepared, [16], "squash", tmp_path / "cache") is None
