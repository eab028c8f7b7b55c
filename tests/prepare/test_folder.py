"""The folder adapter: competitions with tables, and a user's own images without a test set or with tables of other forms."""

import re
import shutil
import zipfile

import pytest
from data_fixtures import no_network

from competition.config.errors import UserError
from competition.prepare import index
from competition.prepare.adapters import folder
from competition.prepare.adapters.folder import NO_TEST_NOTE

TABLES = {
    "train.csv": "id,label\n001,cat\n002,dog\nNA,dog\n",
    "test.csv": "id\n1e5\n004\n",
    "sample_submission.csv": "id,label\n1e5,cat\n004,cat\n",
}
IMAGES = ["train/001.jpg", "train/002.png", "train/NA.webp", "test/1e5.bmp", "test/004.gif"]


def zipped(source, top=""):
    path = source.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(source.rglob("*")):
            archive.write(file, top + file.relative_to(source).as_posix())
    return path


@pytest.mark.parametrize("form", ["a directory", "a zip", "a zip of one folder", "a zip of nested folders"])
def test_tables_and_images_of_every_format_are_read_from_directories_and_zips(make_source, read, form):
    source = make_source(TABLES, IMAGES)
    if form != "a directory":
        source = zipped(source, top={"a zip": "", "a zip of one folder": "x/"}.get(form, "x/x/all/"))
    described, rows = read(source)
    assert [(row.id, row.label, row.part, row.shard) for row in rows] == [
        ("001", 0, "train", "train/001.jpg"),
        ("002", 1, "train", "train/002.png"),
        ("NA", 1, "train", "train/NA.webp"),
        ("1e5", -1, "test", "test/1e5.bmp"),
        ("004", -1, "test", "test/004.gif"),
    ]
    assert described.classes == described.label_values == ("cat", "dog")
    assert (described.metric, described.predicts) == ("macro_f1_present", "label")
    assert index.build(rows, 2)[0]["problem"].eq("").all()


NUMBERED = "image_id,{0},{1},width\n1,7,tulip,20\n2,10,daisy,20\n3,7,tulip,30\n4,10,daisy,30\n"
FOUR = ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
# Name -> (tables, images, settings, what is detected, labels of the rows; -1: a test image).
DETECTED = {
    "one-hot columns are probabilities": (
        {"train.csv": "image_id,rust,scab\na,0,1\nb,1,0\n", "sample_submission.csv": "image_id,rust,scab\nc,0.5,0.5\n"},
        ["images/a.jpg", "images/b.jpg", "images/c.jpg"], {},
        {"predicts": "probabilities", "metric": "log_loss", "prediction_columns": ("rust", "scab")}, [1, 0, -1],
    ),
    "a label column, and a submission of one column per class in an order of its own (State Farm)": (
        {"train.csv": "img,kind\na,x\nb,y\n", "test.csv": "img\nc\n", "sample_submission.csv": "img,y,x\nc,0.5,0.5\n",
         "classes.csv": "label,name\nx,Fox\ny,Yak\n"},
        ["a.jpg", "b.jpg", "c.jpg"], {},
        {"predicts": "probabilities", "metric": "log_loss", "classes": ("Yak", "Fox"), "prediction_columns": ("y", "x")},
        [1, 0, -1],
    ),
    "names of classes.csv, labels of train.csv": (
        {**TABLES, "train.csv": "id,label\n001,1\n002,10\nNA,1\n", "classes.csv": "label,name\n1,one\n5,five\n10,ten\n"},
        IMAGES, {}, {"classes": ("one", "five", "ten"), "label_values": ("1", "5", "10")}, [0, 2, 0, -1, -1],
    ),
    "configured columns": (
        {"train.csv": "row,file,kind,score\n1,001,cat,0.1\n2,002,dog,0.2\n3,NA,dog,0.5\n", "test.csv": "row,file\n4,1e5\n5,004\n"},
        IMAGES, {"id_column": "file", "label_column": "kind"}, {"id_column": "file", "prediction_columns": ("kind",)},
        [0, 1, 1, -1, -1],
    ),
    "a number and the name that it maps to; the width has two values as well, but each with both names": (
        {"train.csv": NUMBERED.format("class_id", "class_name")}, FOUR, {},
        {"classes": ("tulip", "daisy"), "label_values": ("7", "10"),
         "notes": ("ids are in column 'image_id', labels in 'class_id' of train.csv", "class names are in column 'class_name'",
                   "column 'width' of train.csv is not used", NO_TEST_NOTE)}, [0, 1, 0, 1],
    ),
    "a column that the test table has too is no label": (
        {"train.csv": "id,width,kind\n1,20,cat\n2,30,dog\n", "test.csv": "id,width\n3,20\n4,20\n"}, FOUR, {},
        {"notes": ("ids are in column 'id', labels in 'kind' of train.csv",
                   "column 'width' of train.csv is not used; head.columns of a member can add 'width' to its features")}, [0, 1, -1, -1],
    ),
    "files in no table are ignored and counted": (
        TABLES, [*IMAGES, "train/more.jpg", "__MACOSX/train/._001.jpg"], {},
        {"notes": ("ids are in column 'id', labels in 'label' of train.csv", "1 image file in no table and therefore ignored")},
        [0, 1, 1, -1, -1],
    ),
    "a table of any name whose column of names of files holds the ids": (
        {"labels.tsv": "breed\tphoto\ncat\t1\ndog\t2\ncat\t3\ndog\t4\n"}, FOUR, {},
        {"id_column": "photo", "notes": ("ids are in column 'photo', labels in 'breed' of labels.tsv", NO_TEST_NOTE)}, [0, 1, 0, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DETECTED)
def test_columns_classes_and_the_form_of_a_submission_are_detected(make_source, read, name):
    tables, images, settings, expected, labels = DETECTED[name]
    described, rows = read(make_source(tables, images), **settings)
    assert {field: getattr(described, field) for field in expected} == expected
    assert [row.label for row in rows] == labels


def test_equal_names_are_told_apart_by_the_folder_of_the_part_or_by_their_paths(make_source, read, tmp_path):
    tables = {"train.csv": "id,label\n1,a\n2,b\n", "test.csv": "id\n3\n"}
    images = ["train_images/1.jpg", "train_images/2.jpg", "test_images/1.jpg", "test_images/3.jpg"]
    _, rows = read(make_source(tables, images))
    assert [row.shard for row in rows] == ["train_images/1.jpg", "train_images/2.jpg", "test_images/3.jpg"]
    shutil.rmtree(tmp_path / "raw")
    del tables["test.csv"]
    _, rows = read(make_source(tables, ["train/1.jpg", "train/2.jpg", "test/1.jpg"], "untold"))
    assert [(row.id, row.part) for row in rows] == [("1", "train"), ("2", "train"), ("test/1.jpg", "test")]


@pytest.mark.parametrize(
    ("tables", "images", "message"),
    [
        ({"test.csv": "id\n1e5\n004\n005\nX1\n"}, IMAGES, "no file was found for 2 test images of the table, '005', 'X1'"),
        ({"train.csv": "index,file,label\n1,001.jpg,cat\n2,002.png,dog\n3,gone.jpg,cat\n", "test.csv": "index,file\n4,004.gif\n"},
         IMAGES, "1 train image of the table, 'gone.jpg', in column 'file' .competition.id_column.; add"),
        ({"train.csv": "index,file,label\n1,001.JPG,cat\n2,002.PNG,dog\n", "test.csv": "index,file\n4,004.GIF\n"},
         IMAGES, "2 train images of the table, '001.JPG', '002.PNG', in column 'file' .* letter case 2 of them"),
        ({"train.csv": "id,label\n/a/b/001,cat\n/a/b/gone,dog\n/a/b/NA,dog\n"}, IMAGES, "1 train image of the table, '/a/b/gone'"),
        ({"test.csv": "id\n1E5\n004\n"}, IMAGES, "1 test image of .* only in letter case 1 of them"),
        ({}, [*IMAGES, "train/001.png"], "more than one file matches each of 1 train id of the table, '001'"),
        ({"train.csv": "id,label\n../../etc/passwd,cat\n002,dog\n"}, IMAGES, "no file was found for 1 train image of the table"),
        ({"train.csv": "id,label\n001,\n002,dog\n"}, IMAGES, "1 row without a label of the 1 class in column 'label', '' of '001'"),
        ({"train.csv": "id,label\n001,cat\n002,cat\n"}, IMAGES, "1 class in the data, 'cat'"),
        ({"train.csv": "id,a,b\n001,1,2\n002,2,3\n"}, IMAGES, "set competition.label_column"),
        ({"classes.csv": "label,name\ncat,Cat\nelk,Elk\n"}, IMAGES, "2 rows without a label of the 2 classes in column 'label', 'dog'"),
        ({"train.csv": "id,label\n001,cat,7\n"}, IMAGES, "train.csv: .* Expected 2 fields in line 2, saw 3"),
        ({"train.csv": "id,label,label\n001,cat,cat\n"}, IMAGES, "column 'label' appears 2 times"),
        ({"train.csv": ""}, IMAGES, "train.csv: No columns"),
        ({"train.csv": "id,Wert %,b\n001,1,2\n002,2,3\n"}, IMAGES, "SET=\"competition.label_column='Wert %'\""),
        (None, ["train/a.jpg", "train/b/c.jpg", "test/d.jpg"], "1 image outside the class folders, 'train/a.jpg'"),
    ],
)  # fmt: skip
def test_inconsistent_sources_are_errors_with_counts_and_names(make_source, read, tables, images, message):
    with pytest.raises(UserError, match=message):
        read(make_source({} if tables is None else {**TABLES, **tables}, images))


def test_a_source_that_is_neither_a_zip_nor_a_directory_is_an_error(tmp_path, make_settings):
    with pytest.raises(UserError, match=r"a directory or a .zip file expected"):
        folder.download(tmp_path / "raw", make_settings(source=str(tmp_path / "nothing")), no_network)
    with pytest.raises(UserError, match=r"competition.source and competition.slug are both empty"):
        folder.download(tmp_path / "raw", make_settings(), no_network)


def test_external_images_are_matched_by_class_name_and_unmatched_folders_are_listed(make_source, read):
    described, _ = read(make_source({**TABLES, "classes.csv": "label,name\ncat,wild cat\ndog,House_Dog\n"}, IMAGES))
    extra = make_source({}, ["Wild_Cat/a/1.jpg", "dog/2.jpg", "house dog/3.jpg", "bird/4.jpg"], "extra")
    rows, left_out = folder.external_rows("more", extra, described)
    assert [(row.id, row.label, row.part) for row in rows] == [
        ("external/more/Wild_Cat/a/1.jpg", 0, "external"),
        ("external/more/dog/2.jpg", 1, "external"),
        ("external/more/house dog/3.jpg", 1, "external"),
    ]
    assert left_out == ["bird"]
    with pytest.raises(UserError, match=r"none of its folders .'bird'. is a class"):
        folder.external_rows("more", make_source({}, ["bird/1.jpg"], "birds"), described)


def test_external_folders_are_of_the_class_of_their_exact_name_before_one_with_a_similar_name(make_source, read):
    described, _ = read(make_source({}, ["a b/1.jpg", "a_b/2.jpg", "c/3.jpg"]))
    extra = make_source({}, ["A b/4.jpg", "C/5.jpg", "a b/6.jpg", "a_b/7.jpg"], "extra")
    rows, left_out = folder.external_rows("more", extra, described)
    classes = {row.shard: described.classes[row.label] for row in rows}
    assert classes == {"C/5.jpg": "c", "a b/6.jpg": "a b", "a_b/7.jpg": "a_b"}
    assert left_out == ["A b"]  # may be either of two classes


@pytest.mark.parametrize(
    "images",
    [
        ["cat/1.jpg", "dog/2.jpg", "test/cat/1.jpg"],
        ["cat/1.jpg", "cat/1.jpg.png", "dog/2.jpg"],
        ["cat/1.jpg", "dog/2.jpg", "train_station/cat/1.jpg"],
    ],
)
def test_an_image_in_a_class_folder_is_the_file_of_its_path_beside_files_of_similar_paths(make_source, read, images):
    _, rows = read(source := make_source({}, images))
    assert [(row.id, row.shard) for row in rows] == [(path, path) for path in images]
    assert [row.data for row in rows] == [(source / path).read_bytes() for path in images]


def test_class_folders_without_test_images_are_for_cross_validation_only(make_source, read, tmp_path):
    described, rows = read(make_source({}, ["train/tulip/b.jpg", "train/daisy/a.jpg"]))
    assert [(row.id, row.label) for row in rows] == [("train/daisy/a.jpg", 0), ("train/tulip/b.jpg", 1)]
    assert described.notes[-1] == NO_TEST_NOTE
    assert (tmp_path / "raw" / "sample_submission.csv").read_text() == "id,label\n"


@pytest.mark.parametrize("ids", ["1 2 8 a/9", "1.jpg 2.jpg 8.jpg a/9.jpg", "train/1 train/2 test/8 test/a/9"])
def test_the_ids_of_test_images_in_no_table_are_written_like_those_of_training_images(make_source, read, ids):
    one, two, *tests = ids.split()
    make_source({"train.csv": f"id,label\n{one},cat\n{two},dog\n"}, ["train/1.jpg", "train/2.jpg"])
    described, rows = read(make_source({}, ["test/8.jpg", "test/a/9.jpg"]))
    assert [row.id for row in rows if row.part == "test"] == tests
    assert NO_TEST_NOTE not in described.notes


def test_hidden_images_are_left_out_and_those_in_other_formats_counted(make_source, read):
    source = make_source({}, ["a/1.jpg", "b/2.jpg", ".net/5.jpg", "a/.6.jpg", "a/._1.jpg", "__MACOSX/a/._1.jpg"])
    for name in ("a/3.HEIC", "b/4.jxl", "labels.xlsx"):
        (source / name).write_bytes(b"x")
    described, rows = read(source)
    starts = ("2 images (.heic, .jxl)", "1 table (.xlsx)")
    assert len(rows) == 2 and all(map(str.startswith, described.notes[-2:], starts))


YEARS = ["2021/cat/1.jpg", "2021/dog/2.jpg", "2022/cat/3.jpg", "2022/dog/4.jpg"]
VALIDATION = ["train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "extra/c/4.jpg"]


@pytest.mark.parametrize(
    ("images", "settings", "classes"),
    [
        (["tulip/b.jpg", "daisy/a.jpg"], {}, "daisy tulip"),
        (["train/cat/a/1.jpg", "train/cat/2.jpg", "train/dog/3.jpg"], {}, "cat cat dog"),  # images at both depths
        (["train/cat/photos/1.jpg", "train/dog/photos/2.jpg"], {}, "cat dog"),  # one folder in each class
        (["train/cat/cats/1.jpg", "train/dog/dogs/2.jpg"], {}, "cat dog"),
        (["seg_train/seg_train/cat/1.jpg", "seg_train/seg_train/dog/2.jpg", "seg_test/seg_test/cat/3.jpg"], {}, "cat dog"),
        (["Training/cat/1.jpg", "Training/dog/2.jpg", "Testing/cat/3.jpg"], {}, "cat dog"),  # letter case, other words
        (["train/cat/1.jpg", "train/dog/2.jpg", "valid/cat/a/3.jpg", "valid/cat/4.jpg"], {}, "cat dog cat cat"),
        (["train_station/1.jpg", "test_tube/2.jpg", "val_disere/3.jpg", "x/4.jpg"], {}, "test_tube train_station val_disere x"),
        (["train/1.jpg", "car/2.jpg", "bus/3.jpg"], {}, "bus car train"),  # vehicles
        (YEARS, {"class_level": 1}, "2021 2021 2022 2022"),
        (YEARS, {"class_level": 2}, "cat dog cat dog"),
        (VALIDATION, {}, "a b a"),  # joins the folds; extra/ is ignored
        (VALIDATION, {"validation": "apart"}, "a b val:a"),
    ],
)  # fmt: skip
def test_the_level_of_the_classes_is_seen_in_the_structure_or_stated(make_source, read, images, settings, classes):
    described, rows = read(make_source({}, images), **settings)
    parts = {"train": "", "val": "val:"}
    labelled = [parts[row.part] + described.classes[row.label] for row in rows if row.part != "test"]
    assert labelled == classes.split()
    assert ("1 image outside train/, val/ and test/ ignored" in described.notes) == (images is VALIDATION)


@pytest.mark.parametrize(("validation", "parts"), [("apart", "train val train"), ("pool", "train train train")])
def test_images_of_a_table_are_validation_rows_if_their_top_folder_is_named_so(make_source, read, validation, parts):
    source = make_source({"train.csv": "id,label\n1,a\n2,b\nval_3,b\n"}, ["train/1.jpg", "valid/2.jpg", "val_3.jpg"])
    assert [row.part for row in read(source, validation=validation)[1]] == parts.split()


NOT_CERTAIN = "it is not certain which of them is the label: set competition.label_column"
TWO_LEVELS = (
    "the folders 'cat', 'dog' hold folders of their own ('a', 'b'), and it is not certain which are the classes: set "
    'SET="competition.class_level=1" for the 2 outer ones or =2 for the 2 inner ones'
)


@pytest.mark.parametrize(
    ("tables", "images", "message"),
    [
        ({"train.csv": "id,a,b\n1,x,u\n2,y,v\n3,x,u\n4,y,v\n"}, FOUR, NOT_CERTAIN),  # two texts that map one to one
        ({"train.csv": "id,width,height\n1,20,30\n2,30,20\n3,20,30\n4,30,20\n"}, FOUR, NOT_CERTAIN),  # nothing names them
        ({"train.csv": "id;height\n1;3,5\n2;4\n3;3,7\n4;4,1\n"}, FOUR, "'3,5', which are numbers with a decimal comma or lists"),
        ({"a.csv": "id,label\n1,x\n2,y\n", "b.csv": "id,label\n3,x\n4,y\n", "notes.csv": "what\nnothing\n"}, FOUR,
         "'a.csv', 'b.csv' all name images; rename the one with the training labels"),
        ({}, ["train/cat/a/1.jpg", "train/cat/b/2.jpg", "train/dog/a/3.jpg", "train/dog/b/4.jpg"], TWO_LEVELS),
        ({"labels.txt": "file\tlabel\n1.jpg\tcat\n2.jpg\tdog\n"}, ["img/1.jpg", "img/2.jpg"], "not read: 'labels.txt': rename"),
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
        b'\xef\xbb\xbfid,label,"a\nb"\n1,cat,x\n2,"dog, large",y\n3,cat,"z\nz"\n4,"dog, large",y\n',
    ],
    ids=["semicolons", "tabs, quotes, CRLF", "bars", "byte order mark, quoted line breaks"],
)
def test_tables_of_spreadsheets_are_read(make_source, read, data):
    source = make_source({}, FOUR)
    (source / "train.csv").write_bytes(data)
    described, rows = read(source)
    assert described.classes == ("cat", "dog, large") and [row.label for row in rows] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "prefix", ["/home/me/photos/", "C:\\photos\\", "../input/birds/train/", "https://host.org/train/"]
)
def test_paths_of_another_machine_are_matched_by_what_follows_their_common_folders(make_source, read, prefix):
    table = "".join(f"{prefix}{name},{label}\n" for name, label in zip(FOUR, "abab", strict=True))
    _, rows = read(make_source({"train.csv": f"path,label\n{table}"}, FOUR))
    assert [(row.id, row.shard) for row in rows] == [(f"{prefix}{name}", name) for name in FOUR]
