import io
import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_source import digests, recipe_of, rows_of, shards_of, stamps, write_photos

from competition.config.errors import UserError
from competition.files import image_codec as images
from competition.prepare import record_files
from competition.tfrecord_export.shard import SourceImage, convert_shard, convert_shards, finished_shard, make_shards


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "source")


@pytest.fixture
def recipe(photos, tmp_path):
    return recipe_of(photos, tmp_path / "target")


@pytest.fixture
def shards(photos):
    return shards_of(rows_of(photos))


def test_each_size_gets_a_file_with_kaggles_name_the_rows_in_order_and_decoded_pixels(shards, recipe, photos) -> None:
    outcome = convert_shard(shards[0], replace(recipe, kind="png"))
    names = {size: f"tfrecords-png-{size}x{size}/train/00-{size}x{size}-4.tfrec" for size in (16, 24)}
    assert [*outcome.files] == [*names.values()]
    for size, name in names.items():
        read = list(record_files.read_shard(f"{recipe.target}/{name}", labelled=True))
        assert [(record.id, record.label) for record in read] == [("r00", 0), ("r01", 1), ("r02", 2), ("r03", 0)]
        for record in read:
            (path,) = photos.glob(f"{record.id}.*")
            pixels = np.array(Image.open(io.BytesIO(record.image)))
            assert np.array_equal(pixels, images.decode(path.read_bytes(), size, "squash"))


def test_a_finished_shard_is_not_touched_unless_it_is_damaged_or_something_it_depends_on_changed(shards, recipe):
    first = convert_shard(shards[0], recipe)
    untouched = stamps(recipe.target)
    again = convert_shard(shards[0], recipe)
    assert again == replace(first, reused=True)
    assert stamps(recipe.target) == untouched and len(untouched) == 2
    assert finished_shard(shards[0], replace(recipe, quality=50)) is None
    first_row, *other_rows = shards[0].rows
    changed = replace(shards[0], rows=(replace(first_row, stamp="changed"), *other_rows))
    assert finished_shard(changed, recipe) is None
    # A damaged one is written again.
    expected, file = digests(recipe.target), Path(recipe.target) / next(iter(first.files))
    manifest = Path(recipe.target) / shards[0].manifest
    for path, content in ((file, b""), (file, file.read_bytes()[:-1] + b"?"), (manifest, manifest.read_bytes()[:50])):
        path.write_bytes(content)
        assert not convert_shard(shards[0], recipe).reused
        assert digests(recipe.target) == expected and json.loads(manifest.read_text())["written"] == 4
    file.unlink()
    assert not convert_shard(shards[0], recipe).reused and digests(recipe.target) == expected


def test_unreadable_images(shards, recipe, photos):
    for name in ("r00.jpg", "r08.jpg"):
        (photos / name).write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError, match=r"image 'r00' \(r00.jpg\): it is a web page .* set convert.bad_images=drop"):
        convert_shard(shards[0], recipe)
    assert digests(recipe.target) == {}
    dropping = replace(recipe, bad_images="drop")
    outcome = convert_shard(shards[0], dropping)
    assert (outcome.written, outcome.dropped) == (3, ("r00",))
    assert all(name.endswith("-3.tfrec") for name in outcome.files)
    outcome = convert_shard(shards[2], dropping)
    assert (outcome.written, outcome.replaced) == (4, ("r08",))  # a test row is never lost


LABELS = [0] * 50 + [1] * 23 + [2] * 7 + [3]  # rare classes, as in real competitions
ROWS = [SourceImage(f"id{n}", label, f"{n}.jpg", "") for n, label in enumerate(LABELS)]


@pytest.mark.parametrize("count", [1, 4, 7, 81])
def test_every_row_is_in_one_of_even_stratified_shards_which_depend_on_the_ids_alone(count):
    shards = make_shards("train", ROWS, count)
    assert sorted(row.id for shard in shards for row in shard.rows) == sorted(row.id for row in ROWS)
    assert len(shards) == count and max(len(s.rows) for s in shards) - min(len(s.rows) for s in shards) <= 1
    assert shards == make_shards("train", ROWS[::-1], count)
    for label in range(4):
        counts = [Counter(row.label for row in shard.rows)[label] for shard in shards]
        assert max(counts) - min(counts) <= 1
    if count == 1:  # classes are mixed within a shard
        assert [row.label for row in shards[0].rows] != LABELS


def test_several_processes_write_the_bytes_of_one(shards, recipe):
    alone = replace(recipe, target=f"{recipe.target}-alone")
    for shard in shards:
        convert_shard(shard, alone)
    outcomes = list(convert_shards(shards, recipe, 2))
    assert {outcome.name for outcome in outcomes} == {"00", "01"} and len(outcomes) == 3
    assert digests(recipe.target) == digests(alone.target) and len(digests(recipe.target)) == 6


def test_the_error_of_a_shard_is_raised_and_after_a_kill_the_same_call_continues(shards, recipe, photos, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(UserError, match=r"was killed, .* the same command continues"):
        patched.setattr("competition.tfrecord_export.shard.convert_shard", _die)
        list(convert_shards(shards, recipe, 1))
    convert_shard(shards[0], recipe)
    finished = stamps(recipe.target)
    (photos / "r05.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"image 'r05' \(r05.png\): the file is empty; repair"):
        list(convert_shards(shards, recipe, 1))
    assert len(finished) == 2 and finished.items() <= stamps(recipe.target).items()


def _die(shard, recipe):
    os.kill(os.getpid(), signal.SIGKILL)
