"""The index of all images, and the duplicates among them."""

import hashlib

import numpy as np
import pandas as pd
import pytest
from builders import competition
from data_fixtures import encode_image, row, synthetic_image
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance

from competition.config.errors import UserError
from competition.prepare import duplicates, index
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
        ([("a", 0, "train"), ("a", 0, "train")], "1 id of several rows of the tables, 'a'; ids must"),
        ([("a", 0, "train"), ("a", 1, "train")], "'a'; ids must"),
        ([("a", 0, "train"), ("b", 1, "train")], "1 label outside the 1 class .* first 1 of 'b' in 00.tfrec"),
        ([("a", 0, "test")], "no training image"),
        ([], "no training image"),
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
    assert readable["id"].tolist() == ["a", "t", "u"] and unreadable["id"].tolist() == ["b", "c", "t"]


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
    with pytest.raises(UserError, match=r"1 of 5 images of there.csv are not in raw/: 'i3'"):
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


BITS, PIXELS = 10, 18.0


def index_with_groups(rows):
    index_table, thumbs = index.build(rows, classes=9)
    pairs = duplicates.duplicate_pairs(index_table, thumbs, bits=BITS, pixels=PIXELS)
    groups = duplicates.merged(index_table["group"].to_numpy(), pairs["a"].to_numpy(), pairs["b"].to_numpy())
    index_table["group"] = groups
    return index_table, pairs


@pytest.mark.parametrize(
    ("change", "image_format", "options", "is_duplicate"),
    [
        (lambda photo: photo.resize((80, 60)), "JPEG", {}, True),
        (lambda photo: photo, "JPEG", {"quality": 30}, True),
        (lambda photo: photo, "WEBP", {}, True),
        (lambda photo: ImageEnhance.Brightness(photo).enhance(1.07), "PNG", {}, True),
        (lambda photo: photo.convert("L"), "PNG", {}, False),  # the hash is blind to colour; the pixels are not
        (lambda photo: photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "PNG", {}, False),
    ],
    ids=["smaller", "harder compressed", "another format", "a little brighter", "grey", "a mirror image"],
)
def test_an_altered_copy_is_a_duplicate_unless_it_differs_visibly(change, image_format, options, is_duplicate):
    image = synthetic_image(1, (160, 120))
    photo, copy = encode_image(image), encode_image(change(image), image_format, **options)
    index_table, _ = index_with_groups([row("a", 0, data=photo), row("b", 0, data=copy), row("c", 2)])
    assert (index_table["group"][0] == index_table["group"][1]) == is_duplicate
    assert index_table["group"][2] == 2


def test_the_groups_are_exactly_the_planted_ones_and_unreadable_images_are_in_none():
    rows = [row(f"{n}", n) for n in range(60)]
    rows += [row(f"{n} copy", n) for n in range(10)]  # identical bytes
    smaller = {n: synthetic_image(n, (160, 120)).resize((80, 60)) for n in range(5, 15)}
    rows += [row(f"{n} near", 0, data=encode_image(photo, "JPEG")) for n, photo in smaller.items()]
    rows += [row(name, 0, data=b"") for name in ("unreadable", "broken")]
    index_table, pairs = index_with_groups(rows)
    planted = index_table.groupby(index_table["id"].str.split().str[0])["id"].agg(frozenset)
    assert set(index_table.groupby("group")["id"].agg(frozenset)) == set(planted)
    assert pairs["exact"].sum() == 10


def written_one(seed):
    """A white stroke on black, like the digit 1: all are alike, none is a copy of another."""
    rng = np.random.default_rng(seed)
    image, slant, middle = Image.new("RGB", (64, 64)), rng.uniform(-14, 14), rng.uniform(26, 38)
    ImageDraw.Draw(image).line([(middle + slant, 8), (middle - slant, 56)], "white", int(rng.integers(5, 10)))
    return image


def test_images_that_look_alike_anyway_do_not_become_one_large_group():
    rows = [row(f"{n}", 0, data=encode_image(written_one(n))) for n in range(300)]
    rows += [row(f"{n} copy", 0, data=encode_image(written_one(n), "JPEG")) for n in range(10)]
    index_table, _ = index_with_groups(rows)
    hashes = np.array([int(text, 16) for text in index_table["phash"]], np.uint64)
    a, b, _ = duplicates.near_hashes(hashes, BITS)
    assert np.bincount(duplicates.merged(np.arange(310), a, b)).max() > 200  # by the hashes alone
    assert index_table["group"].value_counts().max() < 40
    assert (index_table["group"][:10].to_numpy() == index_table["group"][300:].to_numpy()).all()


@pytest.mark.parametrize("pixels_per_frame", [0, 1, 4])
def test_the_frames_of_a_video_stay_together(pixels_per_frame):
    noise = np.random.default_rng(0)

    def frame(video, number):
        left = pixels_per_frame * number
        sight = np.asarray(synthetic_image(video, (400, 200)).crop((left, 20, left + 160, 180)), float)
        return Image.fromarray((sight + noise.normal(0, 4, sight.shape)).clip(0, 255).astype(np.uint8))

    rows = [row(f"{v} {n}", 0, data=encode_image(frame(v, n), "JPEG")) for v in range(5) for n in range(50)]
    rows += [row(f"other {n}", 100 + n) for n in range(50)]
    index_table, _ = index_with_groups(rows)
    of_video = index_table["group"].to_numpy()[:250].reshape(5, 50)
    assert (of_video == of_video[:, :1]).all() and len(np.unique(of_video)) == 5


def test_a_chain_of_pairs_is_one_group():
    chain = pd.DataFrame({"a": [1, 2, 5], "b": [2, 3, 6]})
    assert duplicates.merged(np.arange(7), *chain.to_numpy().T).tolist() == [0, 1, 1, 1, 4, 5, 5]
    assert duplicates.merged(np.arange(3), *chain[:0].to_numpy().T).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("policy", "remaining_ids"), [("keep", ["a", "b", "c", "d", "t"]), ("drop", ["c", "d", "t"])])
def test_a_photo_with_two_labels_is_listed_and_kept_or_dropped(policy, remaining_ids):
    rows = [row("a", 1, label=1), row("b", 1, label=2), row("c", 3, label=1), row("d", 3, label=1)]
    rows += [row("t", 1, part="test", label=-1)]  # its label is unknown, so it contradicts no other label
    index_table, _ = index_with_groups(rows)
    classes = competition(("x", "y", "z"), label_values=("007", "7", "10"))
    assert duplicates.conflicts(index_table, classes)[["id", "label"]].to_numpy().tolist() == [["a", "7"], ["b", "10"]]
    assert duplicates.without_conflicts(index_table, policy, classes)["id"].tolist() == remaining_ids
    with pytest.raises(UserError, match="1 photo under more than one label, 'a', 'b'"):
        duplicates.without_conflicts(index_table, "error", classes)


def test_in_a_regression_only_identical_photos_conflict():
    smaller = encode_image(synthetic_image(1, (160, 120)).resize((80, 60)))
    photo = encode_image(synthetic_image(1, (160, 120)))
    rows = [row("a", 0, label=0, data=photo), row("b", 0, label=1, data=smaller)]
    numbers = competition(("mm",), target="regression", predicts="value", label_targets=("4.0", "4.5"))
    assert duplicates.conflicts(index_with_groups(rows)[0], numbers).empty
    found = duplicates.conflicts(index_with_groups([*rows, row("c", 0, label=1, data=photo)])[0], numbers)
    assert found[["id", "label"]].to_numpy().tolist() == [["a", "4"], ["c", "4.5"]]


@pytest.mark.parametrize("most", [0, 6, 11, 12])
def test_near_hashes_are_exactly_the_pairs_that_comparing_all_pairs_finds(monkeypatch, most):
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, 150, dtype=np.uint64)
    near = hashes.copy()  # differ from these in up to six bits
    for _ in range(6):
        near ^= np.uint64(1) << rng.integers(0, 64, 150, dtype=np.uint64)
    hashes = rng.permutation(np.concatenate([hashes, near, hashes[:15]]))
    apart = np.bitwise_count(hashes[:, None] ^ hashes[None])
    expected = [(a, b, apart[a, b]) for a, b in zip(*np.nonzero(apart <= most), strict=True) if a < b]
    monkeypatch.setattr(duplicates, "AT_ONCE", 701)
    assert list(zip(*duplicates.near_hashes(hashes, most), strict=True)) == expected and len(expected) >= 15
