"""Decoded images: the same pixels from memory, disk and stream; within the budget; never stale or partial."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest
from builders import largest_file
from data_fixtures import encode_image, synthetic_image
from preloaded import start_process

from competition.config.errors import UserError
from competition.files.image_codec import decode
from competition.input_pipeline import decoded_cache
from competition.input_pipeline.decoded_cache import CacheBudget, RecordedImages, decode_images
from competition.input_pipeline.decoded_rows import PixelFile, Stream, is_streamed
from competition.prepare import record_files
from competition.prepare.tfrecord_format import Record

N, SIZE = 9, 16
BYTES_PER_IMAGE = SIZE * SIZE * 3  # bytes
IDS = np.array([f"i{n}" for n in range(N)])
ALL, NONE = 10**9, np.zeros(N, bool)
FILES = [encode_image(synthetic_image(n)) for n in range(N)]
EXPECTED = np.stack([decode(file, SIZE, "squash") for file in FILES])


@pytest.fixture
def shards(tmp_path):
    """Two record files, whose rows are in another order than IDS."""
    order = [*range(N - 1, -1, -1)]
    for name, selected in (("a-5", order[:5]), ("b-4", order[5:])):
        record_files.write_shard(str(tmp_path / f"{name}.tfrec"), [Record(f"i{n}", n, FILES[n]) for n in selected])
    return [str(tmp_path / "a-5.tfrec"), str(tmp_path / "b-4.tfrec")]


@pytest.fixture
def budget(tmp_path):
    return CacheBudget(tmp_path / "cache", 0, ALL)


def decoded(shards, budget, size=SIZE, fit="squash", **changes):
    images = replace(RecordedImages(shards, IDS, NONE, "x"), **changes)
    return decode_images(images, size, fit, budget, lambda *_: None)


def cached_files(budget):
    return sorted(budget.folder.glob("[!.]*.npy"))


@pytest.mark.parametrize(
    ("ram", "disk", "kind"), [(ALL, ALL, np.ndarray), (ALL, 0, np.ndarray), (0, ALL, PixelFile), (0, 0, Stream)]
)
def test_memory_disk_and_stream_give_the_same_pixels_in_any_order(shards, budget, ram, disk, kind) -> None:
    budget = replace(budget, ram=ram, disk=disk)
    for _ in range(2):  # first written, then reused
        pixels = decoded(shards, budget)
        assert type(pixels) is kind and pixels.shape == EXPECTED.shape
        for rows in ([4, 0, 8, 4], [], range(N)):
            np.testing.assert_array_equal(pixels[np.array(rows, int)], EXPECTED[np.array(rows, int)])
    assert len(cached_files(budget)) == (disk > 0) and is_streamed(pixels) == (kind is Stream)


@pytest.mark.parametrize(
    "change", [{"size": 8}, {"fit": "crop"}, {"source": "y"}, {"ids": IDS[:5], "unreadable": NONE[:5]}], ids=str
)
def test_other_data_or_options_and_another_pillow_are_cached_separately(shards, budget, change, monkeypatch) -> None:
    original, changed = decoded(shards, budget), decoded(shards, budget, **change)
    assert len(cached_files(budget)) == 2
    assert original.shape != changed.shape or change in ({"fit": "crop"}, {"source": "y"})
    monkeypatch.setattr("PIL.__version__", "0")
    decoded(shards, budget)
    assert len(cached_files(budget)) == 3


def test_the_least_recently_used_file_is_deleted_to_stay_within_the_budget(shards, budget) -> None:
    room = replace(budget, disk=round(2.5 * (N * BYTES_PER_IMAGE + 128)))
    for source in ("first", "second"):
        decoded(shards, room, source=source)
    for age, file in enumerate(cached_files(room)):
        os.utime(file, (1_000 + age,) * 2)
    for source in ("first", "third"):  # the first is used again
        decoded(shards, room, source=source)
    files = set(cached_files(room))
    assert len(files) == 2
    decoded(shards, room, source="first")
    assert set(cached_files(room)) == files  # the second was deleted


def test_images_that_never_fit_delete_nothing_and_a_full_disk_is_not_written_to(shards, budget, monkeypatch) -> None:
    decoded(shards, budget)
    assert type(decoded(shards, replace(budget, disk=N * BYTES_PER_IMAGE + 300), size=4 * SIZE)) is Stream
    monkeypatch.setattr(decoded_cache, "LEFT_FREE", 10**18)  # more than any disk has
    assert type(decoded(shards, budget, source="y")) is Stream and len(cached_files(budget)) == 1


def test_a_disk_that_fills_up_while_writing_is_no_error_and_leaves_no_file(shards, budget) -> None:
    with largest_file(4_000):  # nine images need 6,912 bytes
        assert type(decoded(shards, replace(budget, ram=ALL))) is np.ndarray
    assert [path.name for path in budget.folder.iterdir()] == ["images.lock"]


def write_without_end(shards, budget, has_begun) -> None:
    images = RecordedImages(shards, IDS, NONE, "x")
    decode_images(images, SIZE, "squash", budget, lambda *_: (has_begun.touch(), time.sleep(60)))


def test_the_partial_file_of_a_killed_writer_is_not_used_and_is_removed(shards, budget, tmp_path) -> None:
    writer = start_process(write_without_end, shards, budget, tmp_path / "begun")
    while not (tmp_path / "begun").exists():
        assert writer.is_alive()
        time.sleep(0.01)
    assert cached_files(budget) == []
    writer.kill()
    writer.join()
    (leftover,) = budget.folder.glob(".*.npy")
    np.testing.assert_array_equal(decoded(shards, budget)[np.arange(N)], EXPECTED)
    assert not leftover.exists() and len(cached_files(budget)) == 1


@pytest.mark.parametrize("damage", ["cut", "longer", "other shape"])
def test_an_incomplete_file_is_written_again(shards, budget, damage) -> None:
    decoded(shards, budget)
    (file,) = cached_files(budget)
    data = file.read_bytes()
    if damage == "other shape":
        np.save(file, np.zeros((N, SIZE, SIZE, 1), np.uint8))
    else:
        file.write_bytes({"cut": data[:-1], "longer": data + b"x"}[damage])
    np.testing.assert_array_equal(decoded(shards, budget)[np.arange(N)], EXPECTED)


def test_unreadable_rows_stay_black_and_missing_rows_are_an_error(shards, budget) -> None:
    ids, unreadable = np.array([*IDS, "gone"]), np.array([*NONE, True])
    for selected in (budget, replace(budget, disk=0), replace(budget, ram=ALL, disk=0)):
        pixels = decoded(shards, selected, ids=ids, unreadable=unreadable)
        assert pixels[np.array([N])].max() == 0 and pixels[np.array([0])].max() > 0
        with pytest.raises(UserError, match=r"1 of 10 images are not in the record files, among 'gone'; run `make"):
            decoded(shards, selected, ids=ids, unreadable=np.zeros(N + 1, bool), source="y")
    assert len(cached_files(budget)) == 1  # no partial file


def test_an_image_that_cannot_be_decoded_is_named(tmp_path, budget) -> None:
    record_files.write_shard(str(tmp_path / "c-1.tfrec"), [Record("odd", 0, b"not an image")])
    for selected in (budget, replace(budget, disk=0)):
        with pytest.raises(UserError, match="image odd: it is no JPEG"):
            decoded([str(tmp_path / "c-1.tfrec")], selected, ids=np.array(["odd"]), unreadable=NONE[:1])[np.array([0])]


def test_remote_record_files_whose_images_fit_no_cache_are_an_error(budget) -> None:
    address = "gs://mine/a.tfrec"
    with pytest.raises(UserError, match=r"9 decoded images of 16 pixels take 0.0 GB, which fit neither"):
        decoded([address], replace(budget, disk=0))
