"""ONLY=...: download one file or folder of a large competition."""

import random
from dataclasses import replace

import pytest
from builders import files_below
from fake_kaggle.parts import Contest
from fake_kaggle.small_competition import RULES

from competition.config.errors import UserError
from competition.kaggle import chosen_files
from competition.kaggle.errors import KaggleError

FILES = {
    "train.csv": b"id,label\na,0\n",
    "train/a b.jpg": bytes(range(256)) * 40,
    "train/deep/a b.jpg": b"another file of the same name",
    "test/c.jpg": b"c" * 1000,
}


@pytest.fixture
def large_competition(kaggle):
    kaggle.contests["flowers"] = Contest(FILES)
    return kaggle


def fetch(client, pattern, folder):
    chosen_files.fetch_some(client, "flowers", pattern, folder, RULES, lambda *_: None)


def test_only_files_that_match_and_are_missing_or_damaged_are_downloaded(large_competition, client, tmp_path):
    for _ in range(2):
        fetch(client, "train/", tmp_path)
        assert files_below(tmp_path) == {name: FILES[name] for name in ("train/a b.jpg", "train/deep/a b.jpg")}
        assert large_competition.count("file") == 2 and large_competition.count("DownloadDataFiles") == 0
    (tmp_path / "train" / "a b.jpg").write_bytes(bytes(256 * 40))  # the right size, other bytes
    fetch(client, "*.jpg", tmp_path)
    sent = [headers["name"] for name, headers in large_competition.calls if name == "file"]
    assert sent[2:] == ["train/a b.jpg", "test/c.jpg"]
    assert files_below(tmp_path).items() <= FILES.items()


@pytest.mark.parametrize("wrong", ["another file under the same ETag", "damaged on the disk"])
def test_a_part_that_does_not_belong_to_the_rest_is_detected(large_competition, client, tmp_path, wrong):
    first, second = (random.Random(seed).randbytes(1_000_000) for seed in (0, 1))
    large_competition.contests["flowers"] = Contest({"big": first})
    large_competition.etag = '"the same"' if "ETag" in wrong else ""  # with it the storage sends no MD5
    large_competition.faults["file"] = ["cut"]
    with pytest.raises(KaggleError):
        fetch(replace(client, policy=replace(client.policy, max_attempts=1)), "big", tmp_path)
    if "ETag" in wrong:
        large_competition.contests["flowers"] = Contest({"big": second})
    else:
        with (tmp_path / "big.part").open("r+b") as part:
            part.write(b"damaged")
    fetch(client, "big", tmp_path)
    assert files_below(tmp_path) == large_competition.contests["flowers"].files


def test_a_file_that_is_sent_as_a_zip_is_unpacked(large_competition, client, tmp_path):
    large_competition.contests["flowers"] = Contest(FILES, sent_as_zip=("train/a b.jpg",))
    fetch(client, "train/a b.jpg", tmp_path)
    assert [(p.name, p.read_bytes()) for p in (tmp_path / "train").iterdir()] == [("a b.jpg", FILES["train/a b.jpg"])]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"test/c.jpg": 999}, "c.jpg has 1000 of 999 listed bytes"),
        *(({name: 5}, "a name that leaves the folder") for name in ("../evil", "/etc/evil", "a\\..\\evil")),
    ],
)
def test_another_size_than_listed_and_a_name_outside_the_folder_are_errors(
    large_competition, client, tmp_path, listed, message
):
    large_competition.contests["flowers"].listed = listed
    with pytest.raises(UserError, match=message):
        fetch(client, "*", tmp_path / "only")
    assert files_below(tmp_path / "only") == {}
