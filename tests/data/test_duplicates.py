import itertools

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageEnhance

from competition.config.errors import UserError
from competition.data import duplicates, index

BITS, PIXELS = 10, 18.0


def indexed(rows, classes=9):
    made, thumbs = index.build(rows, classes)
    same = duplicates.duplicate_pairs(made, thumbs, bits=BITS, pixels=PIXELS)
    made["group"] = duplicates.group_duplicates(same, len(made))
    return made, thumbs, same


def altered(world, seed, how):
    photo = world.picture(seed, (160, 120))
    changes = {
        "smaller": lambda: world.encoded(photo.resize((80, 60)), "JPEG"),
        "harder compressed": lambda: world.encoded(photo, "JPEG", quality=30),
        "another format": lambda: world.encoded(photo, "WEBP"),
        "a little brighter": lambda: world.encoded(ImageEnhance.Brightness(photo).enhance(1.07)),
        "grey": lambda: world.encoded(photo.convert("L")),
        "a mirror image": lambda: world.encoded(photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    }
    return world.encoded(photo), changes[how]()


@pytest.mark.parametrize(
    ("how", "same"),
    [
        ("smaller", True),
        ("harder compressed", True),
        ("another format", True),
        ("a little brighter", True),
        ("grey", False),  # the hash is blind to colour; the pixels are not
        ("a mirror image", False),
    ],
)
def test_a_photo_and_its_altered_copy(world, how, same):
    one, other = altered(world, 1, how)
    made, _, _ = indexed([world.row("a", 0, data=one), world.row("b", 0, data=other), world.row("c", 2)])
    assert (made["group"][0] == made["group"][1]) == same
    assert made["group"][2] == 2


def test_exactly_the_planted_groups_are_found(world):
    rows = [world.row(f"i{n}", n) for n in range(60)]
    rows += [world.row(f"copy{n}", n) for n in range(10)]  # the same bytes
    rows += [world.row(f"near{n}", 0, data=altered(world, n, "smaller")[1]) for n in range(5, 15)]  # nearly the same
    made, _, same = indexed(rows)
    planted = {
        frozenset(name for name in (f"i{n}", f"copy{n}", f"near{n}") if name in set(made["id"])) for n in range(60)
    }
    assert {frozenset(ids) for _, ids in made.groupby("group")["id"]} == planted
    assert same["exact"].sum() == 10


def test_blocks_find_what_comparing_every_pair_finds(world, monkeypatch):
    monkeypatch.setattr(duplicates, "BLOCK", 7)
    made, thumbs = index.build([world.row(f"i{n}", n % 12, data=_jittered(world, n)) for n in range(40)], 1)
    same = duplicates.duplicate_pairs(made, thumbs, bits=20, pixels=255)
    hashes = [int(text, 16) for text in made["phash"]]
    digests = made["sha256"].tolist()
    wanted = {(a, b) for a, b in itertools.combinations(range(40), 2) if (hashes[a] ^ hashes[b]).bit_count() <= 20}
    assert len(set(digests)) == 40 and len(wanted) > 40
    assert set(zip(same["a"], same["b"])) == wanted


def _jittered(world, n):
    pixels = np.asarray(world.picture(n % 12)).astype(int)
    noisy = pixels + np.random.default_rng(n).normal(0, 40, pixels.shape)
    return world.encoded(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))


def test_a_chain_of_pairs_is_one_group():
    chain = pd.DataFrame({"a": [1, 2, 5], "b": [2, 3, 6]})
    assert duplicates.group_duplicates(chain, 7).tolist() == [0, 1, 1, 1, 4, 5, 5]
    assert duplicates.group_duplicates(chain[:0], 3).tolist() == [0, 1, 2]


def test_unreadable_images_are_nobodys_duplicates(world):
    made, _, same = indexed([world.row("a", 0, data=b""), world.row("b", 0, data=b""), world.row("c", 1)])
    assert len(same) == 0 and made["group"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("policy", "left"), [("keep", ["a", "b", "c", "d", "t"]), ("drop", ["c", "d", "t"])])
def test_one_photo_under_two_labels_is_listed_and_kept_or_dropped(world, policy, left):
    rows = [
        world.row("a", 1, label=1),
        world.row("b", 1, label=2),
        world.row("c", 3, label=1),
        world.row("d", 3, label=1),
    ]
    rows += [world.row("t", 1, part="test", label=-1)]  # its label is unknown, so it contradicts nobody
    made, _, _ = indexed(rows)
    assert duplicates.conflicts(made)[["id", "label"]].to_numpy().tolist() == [["a", 1], ["b", 2]]
    assert duplicates.without_conflicts(made, policy)["id"].tolist() == left
    with pytest.raises(UserError, match="1 photos appear under more than one label, 'a', 'b'"):
        duplicates.without_conflicts(made, "error")


def test_the_known_duplicates_of_a_real_set_are_found(real_data, tmp_path, settings, world):
    """flowers102_128, 8,189 photos: 4 pairs of the same bytes, near ones, one photo under two labels."""
    from competition.data import leaks
    from competition.data.adapters import folder

    told = settings(adapter="folder", source=str(real_data / "flowers102_128.zip"))
    folder.download(tmp_path, told, world.no_network)
    made, _, same = indexed(folder.rows(tmp_path, told), classes=102)
    assert same["exact"].sum() == 4
    assert 18 <= len(same) <= 40
    assert (
        made["group"].value_counts().max() <= 8
    )  # photos of one flower in a row, no group that swallows its neighbours
    assert set(duplicates.conflicts(made)["label"]) == {4, 35}
    found = leaks.find_leaks(made)
    assert leaks.inflation(made, found, 102).touched >= 8
