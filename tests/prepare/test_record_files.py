import io
from collections.abc import Callable

import numpy as np
import pytest
from data_fixtures import encode_image, row, synthetic_image

from competition.config.errors import UserError
from competition.files import image_codec as images
from competition.prepare import folds, index, record_files, tfrecord_format
from competition.prepare.tfrecord_format import Record


def record(serialized: bytes) -> bytes:
    tfrecord_format.write_record(file := io.BytesIO(), serialized)
    return file.getvalue()


def example(**features: bytes | int) -> Callable[[bytes, list[int]], bytes]:
    """A shard of one record with these features in place of any content."""
    return lambda data, ends: record(tfrecord_format.serialize_example(features))


# Name -> (content of the shard and end of each record -> damaged content, message).
DAMAGED = {
    "cut inside a record": (lambda data, ends: data[: ends[2] - 50], "5.tfrec, record 2: it is truncated or damaged"),
    "cut between records": (lambda data, ends: data[: ends[2]], "3 records were read where the name says 5"),
    "a flipped bit": (lambda data, ends: data[: ends[1] + 100] + b"\0\0\0" + data[ends[1] + 103 :], "record 2: it is truncated or damaged"),
    "text": (lambda data, ends: b"<html><body>Please sign in</body></html>", "record 0: it is truncated or damaged"),
    "not an example": (lambda data, ends: record(b"\xff\xfe nonsense"), "record 0: not a tf.train.Example"),
    "missing": (None, "5.tfrec: no such file"),
    "no class": (example(id=b"a", image=b""), "record 0.*feature 'class' is missing; features id, image were found"),
    "no id": (example(**{"image": b"", "class": 1}), "record 0.*feature 'id' is missing"),
    "a text as class": (example(id=b"a", image=b"", **{"class": b"rose"}), "'class' has 1 values of type bytes, one int was"),
    "a number as id": (example(id=7, image=b"", **{"class": 1}), "'id' has 1 values of type int, one bytes was expected"),
    "an id in another encoding": (example(id=b"\xff\xfe", image=b"", **{"class": 1}), "record 0.*is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_or_missing_shard_is_an_error_with_file_and_record(tmp_path, name):
    (damage, message), shard = DAMAGED[name], tmp_path / "00-32x32-5.tfrec"
    record_files.write_shard(str(shard), [Record(f"i{n}", n, encode_image(synthetic_image(n))) for n in range(5)])
    data = shard.read_bytes()
    records = tfrecord_format.read_records(io.BytesIO(data), shard.name)
    ends = [offset + len(one) + tfrecord_format.TAIL for offset, one in records]
    shard.unlink()
    if damage:
        shard.write_bytes(damage(data, ends))
    with pytest.raises(UserError, match=message):
        list(record_files.read_shard(str(shard), labelled=True))


@pytest.fixture
def prepared():
    """23 training rows, 7 test rows (one unreadable), 2 external ones, in shuffled order, with folds."""
    rows = [row(f"i{n}", n, label=n % 2) for n in range(23)]
    rows += [row(f"t{n}", 50 + n, part="test", label=-1) for n in range(6)]
    rows += [row("broken", 0, part="test", label=-1, data=b"<html>")]
    rows += [row(f"e{n}", 90 + n, part="external", label=1) for n in range(2)]
    rows = [rows[n] for n in np.random.default_rng(0).permutation(len(rows))]
    index_table, _ = index.build(rows, 2)
    index_table["fold"] = folds.assign(index_table, 3, seed=0)
    return rows, index_table


def test_every_row_is_written_once_in_order_to_the_shards_of_its_fold(prepared, tmp_path):
    rows, index_table = prepared
    names = record_files.write(rows, index_table, str(tmp_path), shard_bytes=8_000)
    assert sorted(names) == sorted(p.name for p in tmp_path.iterdir())
    assert len([name for name in names if name.startswith("fold0-")]) > 1
    part = np.where(index_table["part"] == "train", "fold" + index_table["fold"].astype(str), index_table["part"])
    for prefix in ("fold0", "fold1", "fold2", "test", "external"):
        files = [str(tmp_path / name) for name in names if name.startswith(f"{prefix}-")]
        expected = index_table.loc[part == prefix, ["id", "label"]]
        records = [record for file in files for record in record_files.read_shard(file)]
        assert [[record.id, record.label] for record in records] == expected.to_numpy().tolist()
    assert sum(int(tfrecord_format.COUNT_IN_NAME.search(name)[1]) for name in names) == len(index_table)
    # An unreadable test image becomes grey; rows dropped from the index are not written.
    kept = index_table[index_table["id"] != "i3"].reset_index(drop=True)
    names = record_files.write(rows, kept, str(tmp_path / "kept"), shard_bytes=10**6)
    records = [record for name in names for record in record_files.read_shard(str(tmp_path / "kept" / name))]
    read = {record.id: record.image for record in records}
    assert read.keys() == set(kept["id"])
    assert images.decode(read["broken"], 8, "crop").tolist() == [[[128] * 3] * 8] * 8


def test_an_image_that_changed_or_is_missing_is_an_error(prepared, tmp_path):
    rows, index_table = prepared
    position = next(n for n, each in enumerate(rows) if each.id == "i5")
    before, after = rows[:position], rows[position + 1 :]
    changed = row("i5", 77, label=1)
    for given, message in (([changed], "'i5' does not match the index"), ([], "1 image of the index missing in raw/")):
        with pytest.raises(UserError, match=message):
            record_files.write([*before, *given, *after], index_table, str(tmp_path), shard_bytes=10**6)
    assert not list(tmp_path.glob("test-*.partial"))


@pytest.mark.parametrize("label", [3, None])
def test_tensorflow_writes_the_same_bytes(tmp_path, label):
    """Protobuf writes a map in an order that differs between processes unless it is told not to."""
    import tensorflow as tf

    values = {"id": b"an id", "image": b"pixels" * 100}
    feature = {key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for key, value in values.items()}
    if label is not None:
        feature["class"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    with tf.io.TFRecordWriter(str(tmp_path / "tensorflow")) as writer:
        writer.write(example.SerializeToString(deterministic=True))
    record_files.write_shard(str(tmp_path / "ours"), [Record("an id", label, values["image"])])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "tensorflow").read_bytes()


def test_without_google_crc32c_the_checksums_are_the_same():
    import google_crc32c  # some images of Kaggle lack it

    data = np.random.default_rng(0).integers(0, 256, 5_000, np.uint8).tobytes()
    for length in (0, 1, 3, 8, 100, 4_999):
        assert tfrecord_format.numpy_crc32c(data[:length]) == google_crc32c.value(data[:length])


def test_unusual_ids_are_never_used_as_paths(tmp_path):
    ids = ["../../x", "/etc/x", "001", "NA", "", "é", "x" * 300]
    path = tmp_path / "in" / "a-7.tfrec"
    record_files.write_shard(str(path), [Record(image_id, None, b"") for image_id in ids])
    assert [record.id for record in record_files.read_shard(str(path), labelled=False)] == ids
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a-7.tfrec", "in"]
