import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageEnhance

from competition.config.errors import UserError
from competition.prepare import duplicates, index

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
def test_an_altered_copy_is_a_duplicate_unless_it_differs_visibly(helpers, change, image_format, options, is_duplicate):
    image = helpers.synthetic_image(1, (160, 120))
    photo, copy = helpers.encode_image(image), helpers.encode_image(change(image), image_format, **options)
    index_table, _, _ = index_with_groups(
        [helpers.row("a", 0, data=photo), helpers.row("b", 0, data=copy), helpers.row("c", 2)]
    )
    assert (index_table["group"][0] == index_table["group"][1]) == is_duplicate
    assert index_table["group"][2] == 2


def test_the_groups_are_exactly_the_planted_ones(helpers):
    rows = [helpers.row(f"i{n}", n) for n in range(60)]
    rows += [helpers.row(f"copy{n}", n) for n in range(10)]  # identical bytes
    smaller = {n: helpers.synthetic_image(n, (160, 120)).resize((80, 60)) for n in range(5, 15)}
    rows += [helpers.row(f"near{n}", 0, data=helpers.encode_image(photo, "JPEG")) for n, photo in smaller.items()]
    index_table, _, pairs = index_with_groups(rows)
    planted = {
        frozenset(name for name in (f"i{n}", f"copy{n}", f"near{n}") if name in set(index_table["id"]))
        for n in range(60)
    }
    assert {frozenset(ids) for _, ids in index_table.groupby("group")["id"]} == planted
    assert pairs["exact"].sum() == 10


def test_a_chain_of_pairs_is_one_group():
    chain = pd.DataFrame({"a": [1, 2, 5], "b": [2, 3, 6]})
    assert duplicates.merged(np.arange(7), *chain.to_numpy().T).tolist() == [0, 1, 1, 1, 4, 5, 5]
    assert duplicates.merged(np.arange(3), *chain[:0].to_numpy().T).tolist() == [0, 1, 2]


def test_unreadable_images_are_never_duplicates(helpers):
    index_table, _, pairs = index_with_groups(
        [helpers.row("a", 0, data=b""), helpers.row("b", 0, data=b""), helpers.row("c", 1)]
    )
    assert len(pairs) == 0 and index_table["group"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("policy", "remaining_ids"), [("keep", ["a", "b", "c", "d", "t"]), ("drop", ["c", "d", "t"])])
def test_a_photo_with_two_labels_is_listed_and_kept_or_dropped(helpers, policy, remaining_ids):
    rows = [
        helpers.row("a", 1, label=1),
        helpers.row("b", 1, label=2),
        helpers.row("c", 3, label=1),
        helpers.row("d", 3, label=1),
    ]
    rows += [helpers.row("t", 1, part="test", label=-1)]  # its label is unknown, so it contradicts no other label
    index_table, _, _ = index_with_groups(rows)
    assert duplicates.conflicts(index_table)[["id", "label"]].to_numpy().tolist() == [["a", 1], ["b", 2]]
    assert duplicates.without_conflicts(index_table, policy)["id"].tolist() == remaining_ids
    with pytest.raises(UserError, match="1 photo under more than one label, 'a', 'b'"):
        duplicates.without_conflicts(index_table, "error")


def test_the_known_duplicates_of_a_real_dataset_are_found(real_data, tmp_path, make_settings, helpers):
    """flowers102_128, 8,189 photos: 4 identical pairs, some near-duplicates, one photo with two labels."""
    from competition.prepare import leaks
    from competition.prepare.adapters import folder

    settings = make_settings(adapter="folder", source=str(real_data / "flowers102_128.zip"))
    folder.download(tmp_path, settings, helpers.no_network)
    described = folder.describe(tmp_path, settings)
    assert described.classes[4] == "Ball Moss" and described.label_values == tuple(str(n) for n in range(102))
    index_table, _, pairs = index_with_groups(folder.rows(tmp_path, settings), classes=102)
    assert index_table["part"].value_counts().to_dict() == {"train": 6145, "test": 2044}
    assert pairs["exact"].sum() == 4
    assert 18 <= len(pairs) <= 40
    # Consecutive photos of one flower are grouped; different flowers are not.
    assert index_table["group"].value_counts().max() <= 8
    assert set(duplicates.conflicts(index_table)["label"]) == {4, 35}
    leak_table = leaks.find_leaks(index_table)
    assert leaks.inflation(index_table, leak_table, 102).touched >= 8


RANDOM = np.random.default_rng(0)


def with_neighbours(count, changed):
    """Random hashes, and for each one that differs from it in up to `changed` bits; some are equal."""
    hashes = RANDOM.integers(0, 2**64, count, dtype=np.uint64)
    near = hashes.copy()
    for _ in range(changed):
        near ^= np.uint64(1) << RANDOM.integers(0, 64, count, dtype=np.uint64)
    return RANDOM.permutation(np.concatenate([hashes, near, hashes[: count // 10]]))


@pytest.mark.parametrize(("parts", "most"), [(1, 6), (3, 0), (5, 6), (8, 6)])
def test_near_hashes_are_exactly_the_pairs_that_comparing_all_pairs_finds(monkeypatch, parts, most):
    hashes = with_neighbours(150, 6)
    apart = np.bitwise_count(hashes[:, None] ^ hashes[None])
    expected = [(a, b, apart[a, b]) for a, b in zip(*np.nonzero(apart <= most), strict=True) if a < b]
    monkeypatch.setattr(duplicates, "AT_ONCE", 701)
    monkeypatch.setattr(duplicates, "PARTS", (parts,))
    monkeypatch.setattr(duplicates, "BLOCK", 7)
    assert list(zip(*duplicates.near_hashes(hashes, most), strict=True)) == expected and len(expected) >= 15
