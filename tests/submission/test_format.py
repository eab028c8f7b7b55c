import numpy as np
import pytest

from competition.config.errors import UserError
from competition.prepare.adapter_types import Competition
from competition.submission import format as submission

IDS = ["001", "NA", "1e5", "=cmd", "i4"]
LABELS = ["3", "0", "1", "2", "3"]


def competition(predicts: str = "label") -> Competition:
    classes = ("rose", "iris", "lily", "aster")
    columns = ("label",) if predicts == "label" else classes
    return Competition("flowers", "flowers", classes, "macro_f1", predicts, "id", columns, ("0", "1", "2", "3"))


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "sample_submission.csv"
    path.write_text("id,label\n" + "".join(f"{i},0\n" for i in IDS))
    return path


def text(ids=IDS, labels=LABELS, header="id,label", end="\n") -> str:
    return header + end + "".join(f"{i},{label}{end}" for i, label in zip(ids, labels, strict=True))


def check(tmp_path, sample, content: str | bytes, index=IDS, competition_description=None):
    path = tmp_path / "submission.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        return submission.check(path, sample, index, competition_description or competition())
    finally:
        # The check does not change the file.
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())


def test_a_written_file_passes_the_check_without_corrections(tmp_path, sample):
    path = tmp_path / "out.csv"
    shuffled = [4, 2, 0, 1, 3]
    ids, labels = np.array(IDS)[shuffled], np.array([3, 0, 1, 2, 3])[shuffled]
    digest = submission.write(ids, labels, competition(), sample, path)
    assert path.read_text() == text()
    checked = submission.check(path, sample, IDS, competition())
    assert (checked.rows, checked.mended, checked.digest) == (5, [], digest)
    assert checked.warnings == ["1 id (=cmd) would be run as a formula by a spreadsheet; left as they are"]


def test_float32_probabilities_are_read_back_exactly(tmp_path):
    flowers = competition("probabilities")
    sample = tmp_path / "sample.csv"
    sample.write_text("id,rose,iris,lily,aster\n" + "".join(f"{i},.25,.25,.25,.25\n" for i in IDS))
    probs = np.random.default_rng(0).dirichlet(np.ones(4) * 0.05, 5).astype(np.float32)
    path = tmp_path / "out.csv"
    submission.write(np.array(IDS), probs, flowers, sample, path)
    ids, cells = submission.read_predictions(path, flowers)
    assert ids == IDS
    assert np.array_equal(np.array(cells, np.float32), probs)
    assert submission.check(path, sample, IDS, flowers).mended == []


REJECTED = {
    "missing ids": (text(IDS[:3], LABELS[:3]), r"2 ids \(=cmd, i4\) missing"),
    "extra ids": (text([*IDS, "x"], [*LABELS, "1"]), r"1 id \(x\) too many"),
    "duplicate ids": (text([*IDS, "NA"], [*LABELS, "1"]), r"1 id \(NA\) more than once"),
    "wrong header": (text(header="id,target"), "expected 'id,label'; 1 of its columns are absent, 1 are unknown"),
    "semicolons": (text().replace(",", ";"), "not separated by commas"),
    "index column": (text([f"{n},{i}" for n, i in enumerate(IDS)], header=",id,label"), "it looks like row numbers"),
    "empty cells": (text(labels=["3", "", " ", "2", "3"]), r"empty cells in the rows of 2 ids \(NA, 1e5\)"),
    "0 rows": ("id,label\n", "holds 0 rows: expected 5"),
    "an empty file": ("", "has no header"),
    "NaN": (text(labels=["3", "nan", "1", "inf", "3"]), r"NaN or infinity in the rows of 2 ids \(NA, =cmd\)"),
    "unknown label": (text(labels=["3", "9", "9", "2", "1.5"]), r"3 labels outside the 4 .*: '9', '1.5'"),
    "UTF-16": (text().encode("utf-16"), r"is UTF-16 \(\d+ bytes\): expected UTF-8"),
    "Latin-1": (text(["é", *IDS[1:]]).encode("latin-1"), "is not UTF-8 .1 bytes, the first at byte 9"),
    "a line with too many cells": (text() + "x,1,2\n", "1 line without the 2 cells of the header: 7"),
    "ids changed by a spreadsheet": (text(["1", "NA", "100000", "=cmd", "i4"]), r"2 ids \(001, 1e5\) missing"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_errors_that_kaggle_would_reject_are_reported_with_their_count(tmp_path, sample, name):
    content, message = REJECTED[name]
    with pytest.raises(UserError, match=message):
        check(tmp_path, sample, content)


CORRECTED = {
    "other order": (text(IDS[::-1], LABELS[::-1]), "4 rows in another order"),
    "byte order mark": (b"\xef\xbb\xbf" + text().encode(), "1 byte order mark"),
    "CRLF": (text(end="\r\n"), "6 line ends CR LF"),
    "float labels": (text(labels=["3.0", "0.0", "1", "2", "3"]), "2 labels written like '3.0'"),
    "columns in another order": (text(LABELS, IDS, header="label,id"), "2 columns stood as label,id"),
}


@pytest.mark.parametrize("name", CORRECTED)
def test_deviations_that_kaggle_would_accept_are_corrected_and_reported(tmp_path, sample, name):
    content, message = CORRECTED[name]
    checked = check(tmp_path, sample, content)
    assert len(checked.mended) == 1
    assert message in checked.mended[0]
    assert checked.content.decode() == text()


def test_a_sample_of_other_test_images_or_columns_is_an_error_although_the_submission_matches_it(tmp_path, sample):
    with pytest.raises(UserError, match=r"1 id \(new\) of the test images are not in it and 1 id \(NA\) of its rows"):
        check(tmp_path, sample, text(), index=["001", "1e5", "=cmd", "i4", "new"])
    sample.write_text("image_id,label\n1,0\n")
    with pytest.raises(UserError, match="header image_id,label, the competition expects id,label"):
        check(tmp_path, sample, text())


@pytest.mark.parametrize(
    ("sample_ids", "test_ids", "message"),
    [
        (["t1.png", "t2.png"], ["t1", "t2"], "differ in the ending of the file only, t1 is t1.png in the sample"),
        (["t1.png", "t2.png"], ["a/t1", "b/t2"], "differ in folders and the ending of the file only"),
        (["1", "2"], ["001", "002"], "differ in leading zeros only"),
        (["1", "2"], ["1", "3"], r"1 id \(3\) of the test images are not in it .* it is stale: run `make download"),
    ],
)
def test_a_sample_with_other_ids_than_the_test_images_is_an_error_that_says_how_they_differ(
    tmp_path, sample_ids, test_ids, message
):
    path = tmp_path / "sample_submission.csv"
    path.write_text("id,label\n" + "".join(f"{name},0\n" for name in sample_ids))
    with pytest.raises(UserError, match=message):
        submission.check_sample(path, test_ids, competition())
