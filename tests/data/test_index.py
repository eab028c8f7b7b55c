import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.data import index

AWKWARD_IDS = [
    "x" * 300,
    "001",
    "1",
    "1e5",
    "NA",
    "null",
    "nan",
    "",
    "None",
    "True",
    "1_0",
    " x ",
    "a,b",
    'say "b"',
    "../../x",
    "/etc/x",
    "é",
]


def test_ids_survive_the_file_whatever_they_look_like(world, tmp_path):
    made, _ = index.build([world.row(one, 0) for one in AWKWARD_IDS], classes=1)
    index.save(made, tmp_path / "index.csv")
    again = index.load(tmp_path / "index.csv")
    assert again["id"].tolist() == AWKWARD_IDS
    assert again.equals(made)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=12),
        min_size=1,
        unique=True,
    )
)
def test_any_printable_id_survives_the_file(tmp_path_factory, ids):
    made, _ = index.build([_blank_row(one) for one in ids], classes=1)
    path = tmp_path_factory.mktemp("ids") / "index.csv"
    index.save(made, path)
    assert index.load(path)["id"].tolist() == ids


def _blank_row(one):
    from competition.data.competition import Row

    return Row(one, 0, "train", "a", 0, b"")


def test_a_row_says_what_the_image_is_and_where_it_lies(world):
    one = world.row("a", 1, label=2, place=7)
    made, thumbs = index.build([one], classes=3)
    row = made.iloc[0]
    assert (row["label"], row["part"], row["shard"], row["place"]) == (2, "train", "00.tfrec", 7)
    assert (row["width"], row["height"], row["bytes"], row["problem"]) == (48, 40, len(one.data), "")
    assert row["sha256"] == hashlib.sha256(one.data).hexdigest()
    assert len(row["phash"]) == 16 and row["fold"] == -1
    assert thumbs.shape == (1, 16, 16, 3) and thumbs.dtype == np.uint8


def test_order_is_kept_over_many_chunks(world, monkeypatch):
    monkeypatch.setattr(index, "CHUNK", 4)
    told = []
    made, _ = index.build([world.row(f"i{n}", n) for n in range(11)], 1, lambda done, total: told.append(done))
    assert made["id"].tolist() == [f"i{n}" for n in range(11)]
    assert told == [4, 8, 11]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("a", "train"), ("a", "train")], "1 ids appear more than once, 'a' \\(train and train\\)"),
        ([("a", "train"), ("a", "test")], "train and test"),
        ([("a\0b", "train")], "control or surrogate characters"),
        ([("a\udc80", "train")], "control or surrogate characters"),
        ([("a", "test")], "no training image"),
        ([], "no image was found"),
    ],
)
def test_impossible_ids_are_refused(world, rows, says):
    with pytest.raises(UserError, match=says):
        index.build([world.row(one, n, part=part) for n, (one, part) in enumerate(rows)], classes=1)


def test_a_label_outside_the_classes_is_refused_with_its_file(world):
    with pytest.raises(UserError, match=r"1 labels are outside the 3 classes .* first 3 of 'b' in 00.tfrec"):
        index.build([world.row("a", 1, label=2), world.row("b", 2, label=3)], classes=3)


def test_unreadable_images_are_listed_and_only_training_rows_dropped(world):
    cut = world.row("x", 5).data[:200]
    rows = [world.row("a", 1), world.row("b", 2, data=b""), world.row("c", 3, data=b"<html>sign in</html>")]
    rows += [world.row("t", 4, part="test", label=-1, data=cut), world.row("u", 6, part="test", label=-1)]
    made, _ = index.build(rows, classes=1)
    with pytest.raises(UserError, match=r"2 training images cannot be read, such as b \(00.tfrec: the file is empty\)"):
        index.without_bad_images(made, "error")
    kept, bad = index.without_bad_images(made, "drop")
    assert kept["id"].tolist() == ["a", "t", "u"]
    assert bad["id"].tolist() == ["b", "c", "t"]


def test_an_index_of_another_shape_is_refused(tmp_path):
    (tmp_path / "index.csv").write_text("id,label\na,1\n")
    with pytest.raises(UserError, match="make prepare"):
        index.load(tmp_path / "index.csv")


def test_a_flipped_byte_that_still_decodes_changes_the_digest(world):
    data = world.encoded(world.picture(1, (200, 200)), "JPEG")
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    made, _ = index.build([world.row("a", 0, data=data), world.row("b", 0, data=bytes(flipped))], classes=1)
    assert made["sha256"].nunique() == 2


def test_an_index_made_like_another_one_is_that_one_whatever_was_chosen_here(world, tmp_path):
    rows = [world.row(f"i{n}", n, n % 2) for n in range(6)]
    made, _ = index.build(rows, classes=2)
    there = made.drop(index=1).assign(group=[0, 0, 3, 4, 5], fold=[1, 1, 0, 1, 0], phash="00000000000000ff")
    index.save(index.choices(there), tmp_path / "there.csv")
    assert "sha256" not in (tmp_path / "there.csv").read_text()
    index.save(there, tmp_path / "expected.csv")
    index.save(index.like(made, tmp_path / "there.csv"), tmp_path / "got.csv")
    assert (tmp_path / "got.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    with pytest.raises(UserError, match=r"1 of 5 images of there.csv are not in the raw files: 'i3'"):
        index.like(made.drop(index=3), tmp_path / "there.csv")
    with pytest.raises(UserError, match=r"1 of 5 images differ from those of there.csv: 'i4'"):
        index.like(made.assign(label=[0, 1, 0, 1, 1, 1]), tmp_path / "there.csv")
