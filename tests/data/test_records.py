import gzip

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.data import folds, images, index, records
from competition.data.records import Record


@pytest.fixture
def shard(tmp_path, world):
    path = tmp_path / "00-32x32-5.tfrec"
    records.write_shard(str(path), [Record(f"i{n}", n, world.encoded(world.picture(n))) for n in range(5)])
    return path


def test_a_shard_is_read_as_it_was_written(shard, world):
    read = list(records.read_shard(str(shard), labelled=True))
    assert [(r.id, r.label, r.image) for r in read] == [(f"i{n}", n, world.encoded(world.picture(n))) for n in range(5)]


def test_awkward_ids_and_paths_are_only_text(tmp_path):
    ids = ["../../x", "/etc/x", "001", "NA", "", "é", "x" * 300]
    path = tmp_path / "in" / "a-7.tfrec"
    records.write_shard(str(path), [Record(one, None, b"") for one in ids])
    assert [record.id for record in records.read_shard(str(path), labelled=False)] == ids
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a-7.tfrec", "in"]


def boundaries(path):
    """Where each record ends: 8 bytes length, 4 check, data, 4 check."""
    data, at, ends = path.read_bytes(), 0, []
    while at < len(data):
        at += 16 + int.from_bytes(data[at : at + 8], "little")
        ends.append(at)
    return ends


def damage(path, how):
    data, ends = path.read_bytes(), boundaries(path)
    flipped = bytearray(data)
    flipped[ends[1] + 100] ^= 1
    path.write_bytes(
        {
            "cut inside a record": data[: ends[2] - 50],
            "cut between records": data[: ends[2]],
            "emptied": b"",
            "a flipped byte": bytes(flipped),
            "gzip": gzip.compress(data),
            "text": b"<html><body>Please sign in and accept the rules</body></html>",
            "not an example": data[:0] + _framed(b"\xff\xfe nonsense"),
        }[how]
    )


def _framed(payload):
    import tempfile
    from pathlib import Path

    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        with tf.io.TFRecordWriter(f"{folder}/x") as writer:
            writer.write(payload)
        return (Path(folder) / "x").read_bytes()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("cut inside a record", "00-32x32-5.tfrec, record 2: it is truncated or damaged"),
        ("cut between records", "3 records were read where the name says 5"),
        ("emptied", "0 records were read where the name says 5"),
        ("a flipped byte", "00-32x32-5.tfrec, record 2: it is truncated or damaged"),
        ("gzip", "record 0: the file is compressed with gzip"),
        ("text", "record 0: the file is text"),
        ("not an example", "record 0: not a tf.train.Example"),
    ],
)
def test_every_damage_names_the_file_and_the_record(shard, how, says):
    damage(shard, how)
    with pytest.raises(UserError, match=says):
        list(records.read_shard(str(shard), labelled=True))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"b-1.tfrec: no such file"):
        list(records.read([str(tmp_path / "b-1.tfrec")]))


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        (
            {"id": b"a", "image": b""},
            "feature 'class' should be one int64_list, nothing was found .features: id, image",
        ),
        ({"image": b"", "class": 1}, "feature 'id' should be one bytes_list, nothing was found"),
        (
            {"id": b"a", "image": b"", "class": b"rose"},
            "feature 'class' should be one int64_list, bytes_list with 1 values",
        ),
        ({"id": 7, "image": b"", "class": 1}, "feature 'id' should be one bytes_list, int64_list"),
        ({"id": b"\xff\xfe", "image": b"", "class": 1}, "is not UTF-8"),
    ],
)
def test_a_wrong_schema_is_said_in_the_words_of_the_data(tmp_path, feature, says):
    import tensorflow as tf

    def kind(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    example = tf.train.Example(features=tf.train.Features(feature={key: kind(value) for key, value in feature.items()}))
    path = tmp_path / "a-1.tfrec"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(example.SerializeToString())
    with pytest.raises(UserError, match=f"a-1.tfrec, record 0.*{says}"):
        list(records.read_shard(str(path), labelled=True))


@pytest.fixture
def prepared(world):
    """23 training rows, 7 test rows (one unreadable), 2 external ones, in shuffled order; folds made."""
    rows = [world.row(f"i{n}", n, label=n % 2) for n in range(23)]
    rows += [world.row(f"t{n}", 50 + n, part="test", label=-1) for n in range(6)]
    rows += [world.row("broken", 0, part="test", label=-1, data=b"<html>")]
    rows += [world.row(f"e{n}", 90 + n, part="external", label=1) for n in range(2)]
    rows = [rows[n] for n in np.random.default_rng(0).permutation(len(rows))]
    made, _ = index.build(rows, 2)
    made["fold"] = folds.assign(made, 3, seed=0)
    return rows, made


def test_every_row_is_in_the_shards_of_its_fold_once_and_in_order(prepared, tmp_path):
    rows, made = prepared
    names = records.write(rows, made, str(tmp_path), shard_bytes=8_000)
    assert sorted(names) == sorted(p.name for p in tmp_path.iterdir())
    assert len([name for name in names if name.startswith("fold0-")]) > 1
    for room, wanted in {
        **{f"fold{k}": made[made["fold"] == k] for k in range(3)},
        "test": made[made["part"] == "test"],
        "external": made[made["part"] == "external"],
    }.items():
        files = [str(tmp_path / name) for name in names if name.startswith(f"{room}-")]
        read = list(records.read(files))
        assert [(one, label) for one, label, _ in read] == list(zip(wanted["id"], wanted["label"]))
    assert sum(int(records.COUNT_IN_NAME.search(name)[1]) for name in names) == len(made)


def test_shards_stay_under_the_limit_and_come_out_even(prepared, tmp_path):
    rows, made = prepared
    size = made["bytes"].max()
    names = records.write(rows, made, str(tmp_path), shard_bytes=int(3.5 * size))
    counts = [int(records.COUNT_IN_NAME.search(name)[1]) for name in names if name.startswith("fold")]
    assert max(counts) <= 4 and min(counts) >= 2


def test_an_unreadable_test_image_becomes_a_grey_one(prepared, tmp_path):
    rows, made = prepared
    names = records.write(rows, made, str(tmp_path), shard_bytes=10**6)
    read = {one: data for one, _, data in records.read(str(tmp_path / n) for n in names)}
    assert images.decode(read["broken"], 8, "crop").tolist() == [[[128] * 3] * 8] * 8


def test_rows_dropped_from_the_index_are_not_written(prepared, tmp_path):
    rows, made = prepared
    kept = made[made["id"] != "i3"].reset_index(drop=True)
    names = records.write(rows, kept, str(tmp_path), shard_bytes=10**6)
    assert {one for one, _, _ in records.read(str(tmp_path / n) for n in names)} == set(kept["id"])


def test_images_that_changed_since_the_index_was_made_are_refused(prepared, tmp_path, world):
    rows, made = prepared
    at = next(n for n, row in enumerate(rows) if row.id == "i5")
    changed = [*rows[:at], world.row("i5", 77, label=1), *rows[at + 1 :]]
    with pytest.raises(UserError, match="'i5' does not match the index"):
        records.write(changed, made, str(tmp_path / "a"), shard_bytes=10**6)
    with pytest.raises(UserError, match="1 images of the index were not found"):
        records.write([*rows[:at], *rows[at + 1 :]], made, str(tmp_path / "b"), shard_bytes=10**6)
    assert not list((tmp_path / "b").glob("test-*.partial"))


def test_gray_exif_and_webp_images_are_written_so_that_all_decoders_agree(world, tmp_path):
    import tensorflow as tf

    kinds = {"webp": world.encoded(world.picture(1), "WEBP"), "gif": world.encoded(world.picture(2), "GIF")}
    rows = [world.row(kind, 0, data=data) for kind, data in kinds.items()]
    made, _ = index.build(rows, 1)
    made["fold"] = 0
    names = records.write(rows, made, str(tmp_path), shard_bytes=10**6)
    for one, _, data in records.read(str(tmp_path / name) for name in names):
        theirs = tf.io.decode_image(data, channels=3, expand_animations=False).numpy()
        ours = images.decode(kinds[one], 40, "squash")
        assert np.abs(images.decode(data, 40, "squash").astype(int) - ours).mean() < 1
        assert theirs.shape == (40, 48, 3)


def test_the_features_of_an_example_are_written_in_one_order() -> None:
    """Protobuf writes a map in an order that differs between processes unless it is told not to."""
    serialized = records.example("an id", b"pixels", 3)
    positions = [serialized.index(name) for name in (b"class", b"id", b"image")]
    assert positions == sorted(positions)
