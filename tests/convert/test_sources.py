from dataclasses import replace

import pytest
from data_fixtures import PLAIN, encode_image, synthetic_image
from small_source import write_photo, write_records

from competition.config.errors import UserError
from competition.convert.shard import Recipe, Shard, codecs, convert_shard
from competition.convert.sources import read_source
from competition.prepare import record_shards
from competition.prepare.tfrecord_format import Record

OPTIONS = replace(PLAIN, adapter="folder")


def listed(source, part):
    return [(row.id, row.label, row.path) for row in source.rows[part]]


def test_tables_with_images(tmp_path):
    for number, path in enumerate(("images/001.jpg", "images/002.png", "images/x.jpg")):
        write_photo(tmp_path / path, number)
    (tmp_path / "train.csv").write_text("id,label\n001,dog\n002,cat\n")
    (tmp_path / "test.csv").write_text("id\nx\n")
    (tmp_path / "sample_submission.csv").write_text("id,label\nx,cat\n")
    source = read_source(str(tmp_path), OPTIONS)
    assert source.competition.classes == ("cat", "dog")
    assert listed(source, "train") == [("001", 1, "images/001.jpg"), ("002", 0, "images/002.png")]
    assert listed(source, "test") == [("x", -1, "images/x.jpg")]
    assert source.tables == {"sample_submission.csv": b"id,label\nx,cat\n"}
    before = source.rows["train"][0].stamp
    write_photo(tmp_path / "images/001.jpg", 9)
    assert read_source(str(tmp_path), OPTIONS).rows["train"][0].stamp != before


def tensorflow_schema(number: int, label: int, **others: bytes) -> dict:
    named = {f"image/{key}": value for key, value in others.items()}
    text = {"image/class/text": ("rose", "tulip")[label - 1].encode()} if label > 0 else {}
    return {"image/encoded": encode_image(synthetic_image(number), "JPEG"), "image/class/label": label, **text, **named}


def test_the_other_common_schema_has_labels_from_1_and_is_written_in_kaggles(tmp_path):
    source_folder = tmp_path / "source"
    named = [tensorflow_schema(n, n + 1, filename=b"n0%d.JPEG" % (n + 1)) for n in (0, 1)]
    write_records(source_folder / "train-00000-of-00002", named)
    write_records(source_folder / "train-00001-of-00002", [tensorflow_schema(2, 2)])
    write_records(source_folder / "validation-00000-of-00001", [tensorflow_schema(3, 1, filename=b"v.JPEG")])
    write_records(source_folder / "test-00000-of-00001", [tensorflow_schema(4, -1, filename=b"t.JPEG")])
    source = read_source(str(source_folder), OPTIONS)
    labelled = {part: [(row.id, row.label) for row in rows] for part, rows in source.rows.items()}
    assert labelled["train"] == [("n01.JPEG", 0), ("n02.JPEG", 1), ("train-00001-of-00002-0", 1)]
    assert (labelled["val"], labelled["test"]) == ([("v.JPEG", 0)], [("t.JPEG", -1)])
    assert source.competition.classes == ("rose", "tulip")
    recipe = Recipe(str(source_folder), str(tmp_path / "target"), (16,), "png", 0, "squash", "error", 10**8, codecs())
    (name,) = convert_shard(Shard("train", "00", tuple(source.rows["train"])), recipe).files
    read = list(record_shards.read_shard(f"{tmp_path}/target/{name}", labelled=True))
    assert [(record.id, record.label) for record in read] == labelled["train"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image/class/label": 0}, "label is 0; labels of this schema start at 1"),
        ({"image/class/text": b"oak"}, "class 2 is called 'oak' here and 'tulip' before"),
        ({"image/class/label": b"2"}, "feature 'image/class/label' has 1 values of type bytes, one int was expected"),
        ({"image/encoded": 3}, "feature 'image/encoded' has 1 values of type int"),
        ({"image/filename": b"\xff"}, "its id or class name is not UTF-8"),
        ({"image/filename": b"n01"}, "1 id of several rows, 'n01'"),
    ],
)
def test_records_that_break_the_schema_are_refused_by_name(tmp_path, change, message):
    first = tensorflow_schema(0, 2, filename=b"n01")
    second = {**tensorflow_schema(1, 2, filename=b"n02"), **change}
    write_records(tmp_path / "train-00000-of-00001", [first, second])
    with pytest.raises(UserError, match=message):
        read_source(str(tmp_path), OPTIONS)


def test_kaggles_tfrecords_of_the_largest_size_are_read_and_truncated_ones_are_refused(tmp_path):
    for size in (16, 24):
        image = encode_image(synthetic_image(size), "JPEG")
        path = tmp_path / f"tfrecords-jpeg-{size}x{size}/train/00-{size}x{size}-2.tfrec"
        record_shards.write_shard(str(path), [Record("a", 0, image), Record("b", 1, image)])
        record_shards.write_shard(str(path).replace("train", "test").replace("-2.", "-1."), [Record("c", None, image)])
    source = read_source(str(tmp_path), OPTIONS)
    largest = "tfrecords-jpeg-24x24/train/00-24x24-2.tfrec"
    assert listed(source, "train") == [("a", 0, largest), ("b", 1, largest)]
    smaller = read_source(str(tmp_path), replace(OPTIONS, image_size=16))
    assert {row.path.split("/")[0] for row in smaller.rows["train"]} == {"tfrecords-jpeg-16x16"}
    path.rename(path.with_name("00-24x24-3.tfrec"))
    with pytest.raises(UserError, match="2 records were read where the name says 3; the file was truncated"):
        read_source(str(tmp_path), OPTIONS)
