import hashlib

import numpy as np
import pytest
from data_fixtures import row
from hypothesis import example, given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.prepare import index
from competition.prepare.adapter_types import Row

PLAIN_TEXT_IDS = "001 1 1e5 NA null nan None True 1_0 ../../x /etc/x é"
AWKWARD_IDS = ["x" * 300, "", " x ", "a,b", 'say "b"', *PLAIN_TEXT_IDS.split(" ")]


def test_rows_are_described_and_stay_in_order_over_several_chunks(monkeypatch):
    monkeypatch.setattr(index, "CHUNK", 4)
    rows = [row(f"i{n}", n, label=n % 3, position=n) for n in range(11)]
    index_table, thumbs = index.build(rows, classes=3)
    assert index_table["id"].tolist() == [f"i{n}" for n in range(11)]
    assert thumbs.shape == (11, 16, 16, 3) and thumbs.dtype == np.uint8
    indexed = index_table.iloc[7].to_dict()
    assert len(indexed.pop("phash")) == 16 and indexed == {
        "id": "i7", "label": 1, "part": "train", "shard": "00.tfrec", "place": 7, "width": 48, "height": 40, "problem": "",
        "bytes": len(rows[7].data), "sha256": hashlib.sha256(rows[7].data).hexdigest(), "group": 7, "fold": -1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", 0, "train"), ("a", 0, "train")], "1 id of more than one row, 'a'; ids must"),
        ([("a", 0, "train"), ("a", 0, "test")], "train and test"),
        ([("a\0b", 0, "train")], "control or surrogate characters in 1 id"),
        ([("a\udc80", 0, "train")], "control or surrogate characters in 1 id"),
        ([("a", 0, "train"), ("b", 1, "train")], "1 label outside the 1 class .* first 1 of 'b' in 00.tfrec"),
        ([("a", 0, "test")], "no training image"),
        ([], "no image was found"),
    ],
)
def test_invalid_ids_and_labels_are_errors(rows, message):
    with pytest.raises(UserError, match=message):
        index.build([row(name, n, label, part) for n, (name, label, part) in enumerate(rows)], classes=1)


def test_unreadable_images_are_listed_and_dropped_from_training_only():
    truncated = row("x", 5).data[:200]
    rows = [row("a", 1), row("b", 2, data=b""), row("c", 3, data=b"<html>sign in</html>")]
    rows += [row("t", 4, part="test", label=-1, data=truncated), row("u", 6, part="test", label=-1)]
    index_table, _ = index.build(rows, classes=1)
    with pytest.raises(UserError, match=r"2 training images cannot be read, such as b \(00.tfrec: the file is empty\)"):
        index.without_bad_images(index_table, "error")
    readable, unreadable = index.without_bad_images(index_table, "drop")
    assert readable["id"].tolist() == ["a", "t", "u"]
    assert unreadable["id"].tolist() == ["b", "c", "t"]


def test_an_index_made_like_a_saved_one_has_its_rows_groups_and_folds(tmp_path):
    rows = [row(f"i{n}", n, n % 2) for n in range(6)]
    index_table, _ = index.build(rows, classes=2)
    saved_index = index_table.drop(index=1).assign(
        group=[0, 0, 3, 4, 5], fold=[1, 1, 0, 1, 0], phash="00000000000000ff"
    )
    index.save(saved_index.drop(columns="sha256"), tmp_path / "there.csv")
    assert "sha256" not in (tmp_path / "there.csv").read_text()
    index.save(saved_index, tmp_path / "expected.csv")
    index.save(index.folds_from(index_table, tmp_path / "there.csv"), tmp_path / "got.csv")
    assert (tmp_path / "got.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    (tmp_path / "short.csv").write_text("id,label\na,1\n")
    with pytest.raises(UserError, match="make prepare"):
        index.load(tmp_path / "short.csv")
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
