"""Images read at their place in the record files: no other bytes, never all of them, by many threads at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.data import records
from competition.data.images import decode
from competition.data.records import Record
from competition.data.stream import Stream

N = 12


@pytest.fixture
def encoded(world):
    return [world.encoded(world.picture(n), "JPEG" if n % 2 else "PNG") for n in range(N)]


@pytest.fixture
def shard(tmp_path, encoded):
    path = tmp_path / "00-12.tfrec"
    records.write_shard(str(path), [Record(f"é{n}", n, data) for n, data in enumerate(encoded)])
    return str(path)


IDS = np.array([f"é{n}" for n in range(N)])
NONE = np.zeros(N, bool)


def test_a_place_is_exactly_where_the_image_lies(shard, encoded) -> None:
    with open(shard, "rb") as file:  # noqa: PTH123
        data = file.read()
    found = list(records.places(shard))
    assert [name for name, _, _ in found] == IDS.tolist()
    assert [data[start : start + length] for _, start, length in found] == encoded


def test_many_threads_at_once_get_what_they_ask_for(shard, encoded) -> None:
    stream = Stream([shard], IDS, NONE, 24, "crop")
    expected = np.stack([decode(data, 24, "crop") for data in encoded])
    asked = [np.random.default_rng(n).integers(0, N, 7) for n in range(60)]
    with ThreadPoolExecutor(8) as pool:
        for rows, pixels in zip(asked, pool.map(stream.__getitem__, asked), strict=True):
            np.testing.assert_array_equal(pixels, expected[rows])


def test_a_damaged_shard_is_refused_before_the_first_image(shard) -> None:
    with open(shard, "r+b") as file:  # noqa: PTH123
        file.seek(500)
        file.write(b"\xff\x00\xff")
    with pytest.raises(UserError, match=r"00-12\.tfrec, record 0: it is truncated or damaged"):
        Stream([shard], IDS, NONE, 24, "crop")


def test_a_batch_and_the_order_of_rows_do_not_tell_how_images_are_kept(shard, encoded) -> None:
    from competition.data.batches import prediction_batches

    stream = Stream([shard], IDS, NONE, 24, "squash")
    array = stream[np.arange(N)]
    rows = np.array([5, 1, 11, 0, 3])
    for (numbers, images), (others, same) in zip(
        prediction_batches(stream, rows, 2), prediction_batches(array, rows, 2), strict=True
    ):
        np.testing.assert_array_equal(numbers, others)
        np.testing.assert_array_equal(images, same)
