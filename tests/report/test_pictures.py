"""Pictures read without TensorFlow from what TensorFlow wrote."""

import base64
import io
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from competition.data import records
from competition.data.competition import Row
from competition.data.images import BadImage
from competition.report.pictures import data_uri, training_images

FOLDS, EACH = 3, 14


def encoded(number: int, size: int = 20) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), number * 5, np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame, dict[str, bytes]]:
    """(records, index, id -> image): folds take turns in the index, and every fold has several record files."""
    ids = [f"id ü {n:02}" for n in range(FOLDS * EACH)]
    images = {name: encoded(n) for n, name in enumerate(ids)}
    rows = [Row(name, n % 2, "train", "", n, images[name]) for n, name in enumerate(ids)]
    index = pd.DataFrame(
        {
            "id": ids,
            "label": [row.label for row in rows],
            "part": "train",
            "fold": [n % FOLDS for n in range(len(ids))],
            "bytes": [len(row.data) for row in rows],
            "sha256": [sha256(row.data).hexdigest() for row in rows],
        }
    )
    folder = tmp_path_factory.mktemp("records")
    names = records.write(rows, index, str(folder), shard_bytes=300)
    assert len(names) > 2 * FOLDS
    return folder, index, images


def test_every_image_is_found_by_its_id(world) -> None:
    folder, index, images = world
    assert training_images(folder, index, list(images)) == images


def test_some_images_are_found_in_whatever_order_they_are_asked_for(world) -> None:
    folder, index, images = world
    some = ["id ü 41", "id ü 00", "id ü 19", "nobody"]
    assert training_images(folder, index, some) == {name: images[name] for name in some if name in images}


def test_a_record_that_is_not_where_the_index_says_is_left_out_and_never_another_one(world) -> None:
    folder, index, images = world
    other = pd.concat([index.iloc[3:], index.iloc[:3]], ignore_index=True)  # fold 0 begins with another row
    assert training_images(folder, other, list(images)) == {}


def test_a_file_cut_short_or_not_there_costs_its_own_pictures_alone(world, tmp_path: Path) -> None:
    folder, index, images = world
    for file in folder.glob("*.tfrec"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (first, *_) = sorted(tmp_path.glob("fold0-*"))
    first.write_bytes(first.read_bytes()[:40])
    found = training_images(tmp_path, index, list(images))
    lost = images.keys() - found.keys()
    assert lost and all(int(name[-2:]) % FOLDS == 0 for name in lost)
    assert all(found[name] == images[name] for name in found)
    assert training_images(tmp_path / "absent", index, list(images)) == {}


@pytest.mark.parametrize(("size", "kind", "shown"), [(8, "png", 8), (300, "jpeg", 112)])
def test_a_small_image_keeps_its_pixels_and_a_large_one_becomes_small(size: int, kind: str, shown: int) -> None:
    address, hard = data_uri(encoded(20, size), "squash")
    head, _, content = address.partition(";base64,")
    assert head == f"data:image/{kind}" and hard == (kind == "png")
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        assert picture.size == (shown, shown)
        assert picture.convert("RGB").getpixel((3, 3)) == pytest.approx((100, 100, 100), abs=2)


def test_what_is_no_image_is_said_to_be_none() -> None:
    with pytest.raises(BadImage):
        data_uri(b"<html>", "squash")
