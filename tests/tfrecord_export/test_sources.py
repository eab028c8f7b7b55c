from dataclasses import replace

from data_fixtures import PLAIN
from small_source import write_photo

from competition.tfrecord_export.sources import read_source

OPTIONS = replace(PLAIN, adapter="folder")


def listed(source, part):
    return [(row.id, row.label, row.path) for row in source.rows[part]]


def test_tables_with_images(tmp_path):
    for number, path in enumerate(("images/001.jpg", "images/002.png", "images/x.jpg")):
        write_photo(tmp_path / path, number)
    (tmp_path / "train.csv").write_text("id,label\n001,dog\n002,cat\n")
    (tmp_path / "test.csv").write_text("id\nx\n")
    (tmp_path / "sample_submission.csv").write_text("id,label\nx,cat\n")
    source = read_source(str(tmp_path), OPTIONS)
    assert source.competition.classes == ("cat", "dog")
    assert listed(source, "train") == [("001", 1, "images/001.jpg"), ("002", 0, "images/002.png")]
    assert listed(source, "test") == [("x", -1, "images/x.jpg")]
    assert source.tables == {"sample_submission.csv": b"id,label\nx,cat\n"}
    before = source.rows["train"][0].stamp
    write_photo(tmp_path / "images/001.jpg", 9)
    assert read_source(str(tmp_path), OPTIONS).rows["train"][0].stamp != before
