import hashlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.prepare import index
from competition.prepare.adapter_types import Row

PLAIN_TEXT_IDS = "001 1 1e5 NA null nan None True 1_0 ../../x /etc/x é"
AWKWARD_IDS = ["x" * 300, "", " x ", "a,b", 'say "b"', *PLAIN_TEXT_IDS.split(" ")]


def test_an_index_row_describes_the_image_and_its_position(helpers):
    input_row = helpers.row("a", 1, label=2, position=7)
    index_table, thumbs = index.build([input_row], classes=3)
    row = index_table.iloc[0]
    assert (row["label"], row["part"], row["shard"], row["place"]) == (2, "train", "00.tfrec", 7)
    assert (row["width"], row["height"], row["bytes"], row["problem"]) == (48, 40, len(input_row.data), "")
    assert row["sha256"] == hashlib.sha256(input_row.data).hexdigest()
    assert len(row["phash"]) == 16 and row["fold"] == -1
    assert thumbs.shape == (1, 16, 16, 3) and thumbs.dtype == np.uint8


def test_rows_stay_in_order_over_several_chunks(helpers, monkeypatch):
    monkeypatch.setattr(index, "CHUNK", 4)
    progress = []
    index_table, _ = index.build(
        [helpers.row(f"i{n}", n) for n in range(11)], 1, lambda done, total: progress.append(done)
    )
    assert index_table["id"].tolist() == [f"i{n}" for n in range(11)]
    assert progress == [4, 8, 11]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "train"), ("a", "train")], "1 id of more than one row, 'a' \\(train and train\\)"),
        ([("a", "train"), ("a", "test")], "train and test"),
        ([("a\0b", "train")], "control or surrogate characters in 1 id"),
        ([("a\udc80", "train")], "control or surrogate characters in 1 id"),
        ([("a", "test")], "no training image"),
        ([], "no image was found"),
    ],
)
def test_invalid_ids_are_errors(helpers, rows, message):
    with pytest.raises(UserError, match=message):
        index.build([helpers.row(image_id, n, part=part) for n, (image_id, part) in enumerate(rows)], classes=1)


def test_unreadable_images_are_listed_and_dropped_from_training_only(helpers):
    truncated = helpers.row("x", 5).data[:200]
    rows = [helpers.row("a", 1), helpers.row("b", 2, data=b""), helpers.row("c", 3, data=b"<html>sign in</html>")]
    rows += [helpers.row("t", 4, part="test", label=-1, data=truncated), helpers.row("u", 6, part="test", label=-1)]
    index_table, _ = index.build(rows, classes=1)
    with pytest.raises(UserError, match=r"2 training images cannot be read, such as b \(00.tfrec: the file is empty\)"):
        index.without_bad_images(index_table, "error")
    readable, unreadable = index.without_bad_images(index_table, "drop")
    assert readable["id"].tolist() == ["a", "t", "u"]
    assert unreadable["id"].tolist() == ["b", "c", "t"]


def test_labels_outside_the_classes_and_other_columns_are_errors(helpers, tmp_path):
    with pytest.raises(UserError, match=r"1 label outside the 3 classes .* first 3 of 'b' in 00.tfrec"):
        index.build([helpers.row("a", 1, label=2), helpers.row("b", 2, label=3)], classes=3)
    (tmp_path / "index.csv").write_text("id,label\na,1\n")
    with pytest.raises(UserError, match="make prepare"):
        index.load(tmp_path / "index.csv")


def test_an_index_made_like_a_saved_one_has_its_rows_groups_and_folds(helpers, tmp_path):
    rows = [helpers.row(f"i{n}", n, n % 2) for n in range(6)]
    index_table, _ = index.build(rows, classes=2)
    saved_index = index_table.drop(index=1).assign(
        group=[0, 0, 3, 4, 5], fold=[1, 1, 0, 1, 0], phash="00000000000000ff"
    )
    index.save(saved_index.drop(columns="sha256"), tmp_path / "there.csv")
    assert "sha256" not in (tmp_path / "there.csv").read_text()
    index.save(saved_index, tmp_path / "expected.csv")
    index.save(index.folds_from(index_table, tmp_path / "there.csv"), tmp_path / "got.csv")
    assert (tmp_path / "got.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    with pytest.raises(UserError, match=r"1 of 5 images of there.csv are not in the raw files: 'i3'"):
        index.folds_from(index_table.drop(index=3), tmp_path / "there.csv")
    with pytest.raises(UserError, match=r"1 of 5 images differ from those of there.csv: 'i4'"):
        index.folds_from(index_table.assign(label=[0, 1, 0, 1, 1, 1]), tmp_path / "there.csv")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=12), min_size=1, unique=True))
@example(AWKWARD_IDS)
def test_every_printable_id_is_saved_and_loaded_unchanged(tmp_path_factory, ids):
    index_table, _ = index.build([Row(image_id, 0, "train", "a", 0, b"") for image_id in ids], classes=1)
    path = tmp_path_factory.mktemp("ids") / "index.csv"
    index.save(index_table, path)
    assert index.load(path)["id"].tolist() == ids and index.load(path).equals(index_table)
