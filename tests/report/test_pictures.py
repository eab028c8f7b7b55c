"""Pictures of the report come from the cache of decoded images."""

import base64
import io
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from competition.data import records
from competition.data.cache import CacheBudget, decode_images
from competition.data.competition import Competition, Row
from competition.data.prepared import Prepared
from competition.report.pictures import cached_pixels, data_uri

FOLDS, ROWS = 3, 12


def encoded(number: int, size: int = 20) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), number * 5, np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Rows in another order than in the record files: folds take turns in the index."""
    ids = [f"id ü {n:02}" for n in range(ROWS)]
    rows = [Row(name, n % 2, "train", "", n, encoded(n)) for n, name in enumerate(ids)]
    index = pd.DataFrame(
        {
            "id": ids,
            "label": [row.label for row in rows],
            "part": "train",
            "fold": [n % FOLDS for n in range(ROWS)],
            "bytes": [len(row.data) for row in rows],
            "sha256": [sha256(row.data).hexdigest() for row in rows],
            "problem": "",
        }
    )
    (tmp_path / "records").mkdir()
    records.write(rows, index, str(tmp_path / "records"), shard_bytes=300)
    names = ("a", "b")
    competition = Competition("garden", "", names, "accuracy", "label", "id", ("label",), names)
    return Prepared(tmp_path, competition, index, "digest")


def fill_cache(prepared: Prepared, folder: Path, size: int) -> None:
    ids = prepared.index["id"].to_numpy(str)
    budget = CacheBudget(folder, 0, 10**9)
    files = prepared.records("train")
    decode_images(files, ids, np.zeros(ROWS, bool), size, "squash", budget, prepared.digest, lambda *_: None)


def test_pictures_are_those_of_the_smallest_cached_size_in_index_order(prepared: Prepared, tmp_path: Path) -> None:
    for size in (16, 32):
        fill_cache(prepared, tmp_path / "cache", size)
    pixels = cached_pixels(prepared, [32, 16, 8], "squash", tmp_path / "cache")
    assert pixels is not None and pixels.shape == (ROWS, 16, 16, 3)
    assert pixels[np.array([7, 2])][:, 0, 0, 0].tolist() == [35, 10]


def test_without_a_cache_of_these_images_there_are_no_pictures(prepared: Prepared, tmp_path: Path) -> None:
    assert cached_pixels(prepared, [16], "squash", tmp_path / "cache") is None
    fill_cache(prepared, tmp_path / "cache", 16)
    assert cached_pixels(prepared, [16], "crop", tmp_path / "cache") is None
    (file,) = (tmp_path / "cache").glob("*.npy")
    file.write_bytes(file.read_bytes()[:-1])
    assert cached_pixels(prepared, [16], "squash", tmp_path / "cache") is None


@pytest.mark.parametrize(("size", "kind", "expected_size"), [(8, "png", 8), (300, "jpeg", 112)])
def test_small_images_keep_their_pixels_and_large_ones_are_reduced(size: int, kind: str, expected_size: int) -> None:
    address, is_small = data_uri(np.full((size, size, 3), 100, np.uint8))
    head, _, content = address.partition(";base64,")
    assert head == f"data:image/{kind}" and is_small == (kind == "png")
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        assert picture.size == (expected_size, expected_size)
        assert picture.convert("RGB").getpixel((3, 3)) == pytest.approx((100, 100, 100), abs=2)
