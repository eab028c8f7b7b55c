"""A user's own folder of images: without a test set, with tables of other names and columns, with what is not read."""

import re
import shutil

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.prepare.adapters.folder import NO_TEST_NOTE

IMAGES = ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]


def labelled(rows):
    return [(row.id, row.label, row.part) for row in rows]


@pytest.mark.parametrize("top", ["", "train/"])
def test_class_folders_without_test_images_are_for_cross_validation_only(make_source, read, tmp_path, top):
    described, rows = read(make_source({}, [f"{top}tulip/b.jpg", f"{top}daisy/a.jpg"]))
    assert labelled(rows) == [(f"{top}daisy/a.jpg", 0, "train"), (f"{top}tulip/b.jpg", 1, "train")]
    assert described.notes[-1] == NO_TEST_NOTE
    assert (tmp_path / "raw" / "sample_submission.csv").read_text() == "id,label\n"


@pytest.mark.parametrize("written", ["{}", "{}.jpg", "{folder}/{}.jpg"])
def test_test_ids_are_written_like_the_training_ids_of_the_table(make_source, read, written):
    ids = {n: written.format(n, folder="train" if n < 3 else "test") for n in (1, 2, 8, 9)}
    source = make_source({"train.csv": f"id,label\n{ids[1]},cat\n{ids[2]},dog\n"}, ["train/1.jpg", "train/2.jpg"])
    make_source({}, ["test/8.jpg", "test/9.jpg"])
    described, rows = read(source)
    assert [row.id for row in rows if row.part == "test"] == [ids[8], ids[9]]
    assert NO_TEST_NOTE not in described.notes


@pytest.mark.parametrize(("validation", "part"), [("pool", "train"), ("apart", "val")])
def test_a_validation_folder_joins_the_folds_or_stays_apart(make_source, read, validation, part):
    images = ["train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "extra/c/4.jpg"]
    described, rows = read(make_source({}, images), validation=validation)
    assert labelled(rows)[2] == ("val/a/3.jpg", 0, part)
    assert "1 image outside train/, val/ and test/ ignored" in described.notes


def test_images_that_are_hidden_or_in_other_formats_are_counted(make_source, read):
    source = make_source({}, ["a/1.jpg", "b/2.jpg", ".net/5.jpg", "a/.6.jpg", "a/._1.jpg", "__MACOSX/a/._1.jpg"])
    for name in ("a/3.HEIC", "b/4.jxl", "labels.xlsx"):
        (source / name).write_bytes(b"x")
    described, rows = read(source)
    starts = ("2 images in hidden", "2 images (.heic, .jxl)", "1 table (.xlsx)")
    assert len(rows) == 2 and all(map(str.startswith, described.notes[-3:], starts))


@pytest.mark.parametrize(
    ("images", "classes"),
    [
        (["train/cat/a/1.jpg", "train/cat/2.jpg", "train/dog/3.jpg"], ["cat", "cat", "dog"]),  # images at both depths
        (["train/cat/photos/1.jpg", "train/dog/photos/2.jpg"], ["cat", "dog"]),  # one folder in each class
        (["train/cat/cats/1.jpg", "train/dog/dogs/2.jpg"], ["cat", "dog"]),
        (["seg_train/seg_train/cat/1.jpg", "seg_train/seg_train/dog/2.jpg", "seg_test/seg_test/cat/3.jpg"], ["cat", "dog"]),
        (["Training/cat/1.jpg", "Training/dog/2.jpg", "Testing/cat/3.jpg"], ["cat", "dog"]),  # letter case, other words
        (["train/cat/1.jpg", "train/dog/2.jpg", "valid/cat/a/3.jpg", "valid/cat/4.jpg"], ["cat", "dog", "cat", "cat"]),
        (["train_station/1.jpg", "test_tube/2.jpg", "val_disere/3.jpg", "x/4.jpg"], ["test_tube", "train_station", "val_disere", "x"]),
        (["train/1.jpg", "car/2.jpg", "bus/3.jpg"], ["bus", "car", "train"]),  # vehicles
    ],
)  # fmt: skip
def test_the_level_of_the_classes_is_seen_in_the_structure(make_source, read, images, classes):
    described, rows = read(make_source({}, images))
    assert [described.classes[row.label] for row in rows if row.part == "train"] == classes


@pytest.mark.parametrize(("level", "classes"), [(1, ("2021", "2022")), (2, ("cat", "dog"))])
def test_the_stated_level_is_used(make_source, read, level, classes):
    images = ["2021/cat/1.jpg", "2021/dog/2.jpg", "2022/cat/3.jpg", "2022/dog/4.jpg"]
    described, rows = read(make_source({}, images), class_level=level)
    assert described.classes == classes and len(rows) == 4


NOT_CERTAIN = "it is not certain which of them is the label: set competition.label_column"
TWO_LEVELS = (
    "the folders 'cat', 'dog' hold folders of their own ('a', 'b'), and it is not certain which are the classes: set "
    'SET="competition.class_level=1" for the 2 outer ones or =2 for the 2 inner ones'
)
NAMING_TABLES = {"a.csv": "id,label\n1,x\n2,y\n", "b.csv": "id,label\n3,x\n4,y\n", "notes.csv": "what\nnothing\n"}


@pytest.mark.parametrize(
    ("tables", "images", "message"),
    [
        ({"train.csv": "id,a,b\n1,x,u\n2,y,v\n3,x,u\n4,y,v\n"}, IMAGES, NOT_CERTAIN),  # two texts that map one to one
        ({"train.csv": "id,width,height\n1,20,30\n2,30,20\n3,20,30\n4,30,20\n"}, IMAGES, NOT_CERTAIN),  # nothing names them
        (NAMING_TABLES, IMAGES, "'a.csv', 'b.csv' all name images; rename the one with the training labels"),
        ({}, ["train/cat/a/1.jpg", "train/cat/b/2.jpg", "train/dog/a/3.jpg", "train/dog/b/4.jpg"], TWO_LEVELS),
        ({}, ["cat/train/1.jpg", "cat/test/2.jpg", "dog/train/3.jpg"], "a source has them the other way round: test/cat/"),
        ({"train.csv": "url,label\nhttps://host.org/1.jpg,a\nhttps://host.org/2.jpg,b\n"}, ["5.jpg", "6.jpg"],
         "images are read from files: download them"),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_asked_for_and_never_guessed(make_source, read, tables, images, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read(make_source(tables, images))


@pytest.mark.parametrize(
    "data",
    [
        b"id;label\n1;cat\n2;dog, large\n3;cat\n4;dog, large\n",
        b'"id"\t"label"\r\n"1"\t"cat"\r\n2\tdog, large\r\n3\tcat\r\n4\tdog, large\r\n',
        b"id|label\n1|cat\n2|dog, large\n3|cat\n4|dog, large\n",
        "id;label\n1;cat\n2;dog, large\n3;cat\n4;dog, large\n".encode("utf-16"),
        b'\xef\xbb\xbfid,label,"a\nb"\n1,cat,x\n2,"dog, large",y\n3,cat,"z\nz"\n4,"dog, large",y\n',
    ],
    ids=["semicolons", "tabs, quotes, CRLF", "bars", "UTF-16", "byte order mark, quoted line breaks"],
)
def test_tables_of_spreadsheets_are_read(make_source, read, data):
    source = make_source({}, IMAGES)
    (source / "train.csv").write_bytes(data)
    described, rows = read(source)
    assert described.classes == ("cat", "dog, large") and [row.label for row in rows] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "prefix", ["/home/me/photos/", "C:\\photos\\", "../input/birds/train/", "https://host.org/train/"]
)
def test_paths_and_addresses_of_another_machine_are_matched_by_what_follows_their_common_folders(
    make_source, read, prefix
):
    table = "".join(f"{prefix}{name},{label}\n" for name, label in zip(IMAGES, "abab", strict=True))
    _, rows = read(make_source({"train.csv": f"path,label\n{table}"}, IMAGES))
    assert [(row.id, row.shard) for row in rows] == [(f"{prefix}{name}", name) for name in IMAGES]


def test_numbers_with_a_decimal_comma_are_asked_about_and_then_read(make_source, read, tmp_path):
    source = make_source({"train.csv": "id;height\n1;3,5\n2;4,0\n3;3,7\n4;4,1\n"}, IMAGES)
    with pytest.raises(UserError, match=r"'height' holds cells such as '3,5', .* set competition.target=regression or"):
        read(source)
    shutil.rmtree(tmp_path / "raw")
    described, rows = read(source, target="regression")
    assert described.targets.of(np.array([row.label for row in rows])).tolist() == [3.5, 4.0, 3.7, 4.1]
