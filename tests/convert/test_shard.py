import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_source import digests, stamps

from competition.config.errors import UserError
from competition.convert.shard import Shard, SourceImage, convert_shard, finished_shard, make_shards, verify_file
from competition.prepare import decoding as images
from competition.prepare import record_shards, tfrecord_format


def test_each_size_gets_one_file_with_kaggles_name_and_the_rows_in_order(shards, recipe):
    outcome = convert_shard(shards[0], recipe)
    names = {size: f"tfrecords-jpeg-{size}x{size}/train/00-{size}x{size}-4.tfrec" for size in (16, 24)}
    assert [*outcome.files] == [*names.values()]
    for size, name in names.items():
        read = list(record_shards.read_shard(f"{recipe.target}/{name}", labelled=True))
        assert [(record.id, record.label) for record in read] == [("r00", 0), ("r01", 1), ("r02", 2), ("r03", 0)]
        assert all(Image.open(io.BytesIO(record.image)).size == (size, size) for record in read)


def test_one_size_has_the_pixels_of_the_training_decoder(rows, recipe, photos):
    lossless = replace(recipe, sizes=(16,), kind="png")
    (name,) = convert_shard(Shard("train", "00", tuple(rows)), lossless).files
    for record in record_shards.read_shard(f"{recipe.target}/{name}", labelled=True):
        (path,) = photos.glob(f"{record.id}.*")
        expected = images.decode(path.read_bytes(), 16, "squash")
        assert np.array_equal(np.array(Image.open(io.BytesIO(record.image))), expected)


def test_a_finished_shard_is_not_touched_and_anything_it_depends_on_makes_it_stale(shards, recipe):
    first = convert_shard(shards[0], recipe)
    untouched = stamps(recipe.target)
    again = convert_shard(shards[0], recipe)
    assert again == replace(first, reused=True)
    assert stamps(recipe.target) == untouched and len(untouched) == 2
    assert finished_shard(shards[0], replace(recipe, quality=50)) is None
    first_row, *other_rows = shards[0].rows
    changed = replace(shards[0], rows=(replace(first_row, stamp="changed"), *other_rows))
    assert finished_shard(changed, recipe) is None
    with pytest.raises(UserError, match="the work list asks for Pillow 1"):  # of an environment with other codecs
        convert_shard(shards[0], replace(recipe, codecs="Pillow 1"))


@pytest.mark.parametrize("damage", ["removed", "one bit", "broken manifest"])
def test_a_damaged_shard_is_written_again(shards, recipe, damage):
    outcome = convert_shard(shards[0], recipe)
    expected, file = digests(recipe.target), Path(recipe.target) / next(iter(outcome.files))
    manifest = Path(recipe.target) / shards[0].manifest
    if damage == "removed":
        file.unlink()
    elif damage == "one bit":
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    else:
        manifest.write_text(manifest.read_text()[:50])
    assert not convert_shard(shards[0], recipe).reused
    assert digests(recipe.target) == expected and json.loads(manifest.read_text())["written"] == 4


def write_file(path: Path, triples: list[tuple[str, int, bytes]]) -> None:
    with path.open("wb") as file:
        for row_id, label, image in triples:
            tfrecord_format.write_record(
                file, tfrecord_format.serialize_example({"id": row_id.encode(), "class": label, "image": image})
            )


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ([("a", 0, b"A")], "1 records were read back, 2 were written"),
        ([("a", 0, b"A"), ("b", 1, b"B"), ("c", 1, b"C")], "record 2: it differs"),
        ([("b", 1, b"B"), ("a", 0, b"A")], "record 0: it differs"),
        ([("a", 0, b"A"), ("b", 2, b"B")], "record 1: it differs"),
        ([("a", 0, b"A"), ("b", 1, b"X")], "record 1: it differs"),
    ],
)
def test_reading_back_compares_count_ids_labels_and_images(tmp_path, written, message):
    import hashlib

    expected = [
        (row_id, label, hashlib.sha256(data).hexdigest()) for row_id, label, data in (("a", 0, b"A"), ("b", 1, b"B"))
    ]
    write_file(tmp_path / "f", [("a", 0, b"A"), ("b", 1, b"B")])
    verify_file(tmp_path / "f", "f", expected)
    write_file(tmp_path / "f", written)
    with pytest.raises(UserError, match=message):
        verify_file(tmp_path / "f", "f", expected)


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


@pytest.mark.parametrize("stratify", [True, False])
@pytest.mark.parametrize("count", [1, 4, 7, 81])
def test_every_row_is_in_one_shard_and_shards_are_even(count, stratify):
    shards = make_shards("train", ROWS, count, stratify)
    assert sorted(row.id for shard in shards for row in shard.rows) == sorted(row.id for row in ROWS)
    assert len(shards) == count and max(len(s.rows) for s in shards) - min(len(s.rows) for s in shards) <= 1


def test_stratified_shards_have_the_same_share_of_every_class_and_depend_on_the_ids_alone():
    shards = make_shards("train", ROWS, 7, stratify=True)
    for label in range(4):
        counts = [Counter(row.label for row in shard.rows)[label] for shard in shards]
        assert max(counts) - min(counts) <= 1
    assert make_shards("train", ROWS, 7, stratify=True) == make_shards("train", ROWS[::-1], 7, stratify=True)
    first = make_shards("train", ROWS, 1, stratify=True)[0].rows
    assert [row.label for row in first] != sorted(row.label for row in first)  # classes are mixed within a shard
