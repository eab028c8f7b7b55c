import numpy as np
import pandas as pd
import pytest
from data_fixtures import encode_image, no_network, row, synthetic_image
from PIL import Image, ImageEnhance

from competition.config.errors import UserError
from competition.prepare import duplicates, index
from competition.prepare.adapter_types import Competition

BITS, PIXELS = 10, 18.0


def index_with_groups(rows, classes=9):
    index_table, thumbs = index.build(rows, classes)
    pairs = duplicates.duplicate_pairs(index_table, thumbs, bits=BITS, pixels=PIXELS)
    index_table["group"] = duplicates.merged(
        index_table["group"].to_numpy(), pairs["a"].to_numpy(), pairs["b"].to_numpy()
    )
    return index_table, thumbs, pairs


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
    index_table, _, _ = index_with_groups([row("a", 0, data=photo), row("b", 0, data=copy), row("c", 2)])
    assert (index_table["group"][0] == index_table["group"][1]) == is_duplicate
    assert index_table["group"][2] == 2


def test_the_groups_are_exactly_the_planted_ones_and_unreadable_images_are_in_none():
    rows = [row(f"{n}", n) for n in range(60)]
    rows += [row(f"{n} copy", n) for n in range(10)]  # identical bytes
    smaller = {n: synthetic_image(n, (160, 120)).resize((80, 60)) for n in range(5, 15)}
    rows += [row(f"{n} near", 0, data=encode_image(photo, "JPEG")) for n, photo in smaller.items()]
    rows += [row(name, 0, data=b"") for name in ("unreadable", "broken")]
    index_table, _, pairs = index_with_groups(rows)
    planted = index_table.groupby(index_table["id"].str.split().str[0])["id"].agg(frozenset)
    assert set(index_table.groupby("group")["id"].agg(frozenset)) == set(planted)
    assert pairs["exact"].sum() == 10


def test_a_chain_of_pairs_is_one_group():
    chain = pd.DataFrame({"a": [1, 2, 5], "b": [2, 3, 6]})
    assert duplicates.merged(np.arange(7), *chain.to_numpy().T).tolist() == [0, 1, 1, 1, 4, 5, 5]
    assert duplicates.merged(np.arange(3), *chain[:0].to_numpy().T).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("policy", "remaining_ids"), [("keep", ["a", "b", "c", "d", "t"]), ("drop", ["c", "d", "t"])])
def test_a_photo_with_two_labels_is_listed_and_kept_or_dropped(policy, remaining_ids):
    rows = [row("a", 1, label=1), row("b", 1, label=2), row("c", 3, label=1), row("d", 3, label=1)]
    rows += [row("t", 1, part="test", label=-1)]  # its label is unknown, so it contradicts no other label
    index_table, _, _ = index_with_groups(rows)
    classes = Competition("f", "", ("x", "y", "z"), "macro_f1", "label", "id", ("label",), ("007", "7", "10"))
    assert duplicates.conflicts(index_table, classes)[["id", "label"]].to_numpy().tolist() == [["a", "7"], ["b", "10"]]
    assert duplicates.without_conflicts(index_table, policy, classes)["id"].tolist() == remaining_ids
    with pytest.raises(UserError, match="1 photo under more than one label, 'a', 'b'"):
        duplicates.without_conflicts(index_table, "error", classes)


def test_in_a_regression_only_identical_photos_conflict():
    smaller = encode_image(synthetic_image(1, (160, 120)).resize((80, 60)))
    photo = encode_image(synthetic_image(1, (160, 120)))
    rows = [row("a", 0, label=0, data=photo), row("b", 0, label=1, data=smaller)]
    competition = Competition(
        "f", "", ("mm",), "rmse", "value", "id", ("mm",), ("mm",), target="regression", label_targets=("4.0", "4.5")
    )
    assert duplicates.conflicts(index_with_groups(rows)[0], competition).empty
    found = duplicates.conflicts(index_with_groups([*rows, row("c", 0, label=1, data=photo)])[0], competition)
    assert found[["id", "label"]].to_numpy().tolist() == [["a", "4"], ["c", "4.5"]]


def test_the_known_duplicates_of_a_real_dataset_are_found(real_data, tmp_path, make_settings):
    """flowers102_128, 8,189 photos: 4 identical pairs, some near-duplicates, one photo with two labels."""
    from competition.prepare import leaks
    from competition.prepare.adapters import folder

    settings = make_settings(adapter="folder", source=str(real_data / "flowers102_128.zip"))
    folder.download(tmp_path, settings, no_network)
    described = folder.describe(tmp_path, settings)
    assert described.classes[4] == "Ball Moss" and described.label_values == tuple(str(n) for n in range(102))
    index_table, _, pairs = index_with_groups(folder.rows(tmp_path, settings), classes=102)
    assert index_table["part"].value_counts().to_dict() == {"train": 6145, "test": 2044}
    assert pairs["exact"].sum() == 4
    assert 18 <= len(pairs) <= 40
    # Consecutive photos of one flower are grouped; different flowers are not.
    assert index_table["group"].value_counts().max() <= 8
    assert set(duplicates.conflicts(index_table, described)["label"]) == {"4", "35"}
    leak_table = leaks.find_leaks(index_table)
    assert leaks.inflation(index_table, leak_table, 102).touched >= 8


@pytest.mark.parametrize(("parts", "most"), [(1, 6), (3, 0), (5, 6), (8, 6)])
def test_near_hashes_are_exactly_the_pairs_that_comparing_all_pairs_finds(monkeypatch, parts, most):
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, 150, dtype=np.uint64)
    near = hashes.copy()  # differ from these in up to six bits
    for _ in range(6):
        near ^= np.uint64(1) << rng.integers(0, 64, 150, dtype=np.uint64)
    hashes = rng.permutation(np.concatenate([hashes, near, hashes[:15]]))
    apart = np.bitwise_count(hashes[:, None] ^ hashes[None])
    expected = [(a, b, apart[a, b]) for a, b in zip(*np.nonzero(apart <= most), strict=True) if a < b]
    monkeypatch.setattr(duplicates, "AT_ONCE", 701)
    monkeypatch.setattr(duplicates, "PARTS", (parts,))
    monkeypatch.setattr(duplicates, "BLOCK", 7)
    assert list(zip(*duplicates.near_hashes(hashes, most), strict=True)) == expected and len(expected) >= 15
