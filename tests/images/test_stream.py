"""Images read from their position in the record files, one at a time and by several threads at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.images.stream import Stream
from competition.prepare import records
from competition.prepare.decoding import decode
from competition.prepare.records import Record

N = 12


@pytest.fixture
def encoded_images(helpers):
    return [helpers.encode_image(helpers.synthetic_image(n), "JPEG" if n % 2 else "PNG") for n in range(N)]


@pytest.fixture
def shard(tmp_path, encoded_images):
    path = tmp_path / "00-12.tfrec"
    records.write_shard(str(path), [Record(f"é{n}", n, data) for n, data in enumerate(encoded_images)])
    return str(path)


IDS = np.array([f"é{n}" for n in range(N)])
NONE = np.zeros(N, bool)


def test_concurrent_threads_get_the_rows_they_request(shard, encoded_images) -> None:
    stream = Stream([shard], IDS, NONE, 24, "crop")
    expected = np.stack([decode(data, 24, "crop") for data in encoded_images])
    requests = [np.random.default_rng(n).integers(0, N, 7) for n in range(60)]
    with ThreadPoolExecutor(8) as pool:
        for rows, pixels in zip(requests, pool.map(stream.__getitem__, requests), strict=True):
            np.testing.assert_array_equal(pixels, expected[rows])


def test_a_damaged_shard_is_an_error_before_the_first_image(shard) -> None:
    with Path(shard).open("r+b") as file:
        file.seek(500)
        file.write(b"\xff\x00\xff")
    with pytest.raises(UserError, match=r"00-12\.tfrec, record 0: it is truncated or damaged"):
        Stream([shard], IDS, NONE, 24, "crop")
