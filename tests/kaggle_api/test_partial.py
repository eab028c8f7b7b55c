"""ONLY=...: one file or a folder of a large competition."""

import random

import pytest
from fake_kaggle.parts import Contest

from competition.config.errors import UserError
from competition.kaggle import partial
from competition.kaggle.client import KaggleError

FILES = {
    "train.csv": b"id,label\na,0\n",
    "train/a b.jpg": bytes(range(256)) * 40,
    "train/deep/a b.jpg": b"another file of the same name",
    "test/c.jpg": b"c" * 1000,
}


@pytest.fixture
def large(kaggle):
    kaggle.contests["flowers"] = Contest(FILES)
    return kaggle


def tree(folder):
    names = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in names}


def fetch(client, pattern, folder, progress=None):
    return partial.fetch_some(client, "flowers", pattern, folder, 200, progress)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("train.csv", ["train.csv"]),
        ("train/", ["train/a b.jpg", "train/deep/a b.jpg"]),
        ("train", ["train/a b.jpg", "train/deep/a b.jpg"]),
        ("*.jpg", ["train/a b.jpg", "train/deep/a b.jpg", "test/c.jpg"]),
    ],
)
def test_only_files_that_match_the_pattern_are_downloaded(large, client, tmp_path, pattern, names):
    fetch(client, pattern, tmp_path / "only")
    assert tree(tmp_path / "only") == {name: FILES[name] for name in names}
    assert large.count("DownloadDataFiles") == 0
    assert large.count("file") == len(names)


def test_only_missing_or_damaged_files_are_downloaded_again(large, client, tmp_path):
    fetch(client, "train/", tmp_path)
    fetch(client, "train/", tmp_path)
    assert large.count("file") == 2
    (tmp_path / "train" / "a b.jpg").write_bytes(bytes(256 * 40))  # the right size, other bytes
    fetch(client, "*.jpg", tmp_path)
    assert [about["name"] for name, about in large.calls if name == "file"][2:] == ["train/a b.jpg", "test/c.jpg"]
    assert tree(tmp_path).items() <= FILES.items()


def test_a_cut_file_is_resumed(large, client, tmp_path):
    big = random.Random(0).randbytes(1_000_000)
    large.contests["flowers"] = Contest({"big": big})
    large.faults["file"] = ["cut"]
    seen = []
    fetch(client, "big", tmp_path, lambda *n: seen.append(n))
    assert (tmp_path / "big").read_bytes() == big
    assert [about.get("Range") is not None for name, about in large.calls if name == "file"] == [False, False, True]
    assert seen[-1] == ("downloading", 1_000_000, 1_000_000)


def test_a_byte_changed_in_transit_is_detected(large, client, said, tmp_path):
    large.faults["file"] = ["flip"]
    fetch(client, "test/c.jpg", tmp_path)
    assert tree(tmp_path) == {"test/c.jpg": FILES["test/c.jpg"]}
    assert said == ["Kaggle: try 2 of 3 in 0 s: c.jpg does not match its MD5"]


def test_a_file_that_comes_as_a_zip_of_one_is_unpacked(large, client, tmp_path):
    large.contests["flowers"] = Contest(FILES, sent_as_zip=("train/a b.jpg",))
    fetch(client, "train/a b.jpg", tmp_path)
    assert tree(tmp_path) == {"train/a b.jpg": FILES["train/a b.jpg"]}
    assert sorted(p.name for p in (tmp_path / "train").iterdir()) == ["a b.jpg"]


def test_a_rate_limit_in_the_middle_costs_no_file(large, client, tmp_path):
    large.faults["DownloadDataFile"] = ["", "429:1"]
    fetch(client, "*.jpg", tmp_path)
    assert len(tree(tmp_path)) == 3
    assert large.count("file") == 3


def test_a_file_of_another_size_than_listed_is_refused(large, client, tmp_path):
    large.contests["flowers"].listed = {"test/c.jpg": 999}
    with pytest.raises(KaggleError, match=r"c.jpg has 1000 of 999 listed bytes"):
        fetch(client, "test/", tmp_path)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("listed", ["../evil", "/etc/evil", "a\\..\\evil"])
def test_a_listed_name_that_leaves_the_folder_is_refused(large, client, tmp_path, listed):
    large.contests["flowers"].listed = {listed: 5}
    with pytest.raises(UserError, match="a name that leaves the folder: nothing was downloaded"):
        fetch(client, "*", tmp_path / "only")
    assert large.count("DownloadDataFile") == 0


def test_a_pattern_that_names_nothing_is_refused_with_examples(large, client, tmp_path):
    with pytest.raises(UserError, match=r"ONLY=absent/ matches none of the 4 files .* \(the first: train.csv, "):
        fetch(client, "absent/", tmp_path)
