"""`goldfold predict-folder`: photos of a folder into a CSV file, by the models and the chain of the submission."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import competition
from stages import Workspace

from competition.config.errors import UserError
from competition.ensemble.predictions import load_scores
from competition.prepare import record_shards
from competition.prepare.prepared import load_prepared
from pipelines.serving.predict_folder import prediction_table, require_writable, write_predictions

IMAGES = 40
CALLED_ID_AND_LABEL = competition(
    ("id", "label"), id_column="image", prediction_columns=("class",), label_values=("0", "1")
)


@pytest.fixture(scope="module")
def photos(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Path]:
    """A copy of the finished workspace, and a folder with test images, two of them damaged, and a photo of a telephone."""
    workspace, folder = finished.copy_to(tmp_path_factory.mktemp("folder")), tmp_path_factory.mktemp("photos")
    prepared = load_prepared(workspace.work / "data")
    for number, (name, _, data) in zip(range(IMAGES), record_shards.read(prepared.records("test"))):
        place = folder / ("a" if number % 2 else "b") / f"{name}.png"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
    (folder / "cut.png").write_bytes(data[:-30])
    (folder / "page.jpg").write_text("<html>")
    (folder / "phone.heic").write_bytes(b"x")
    return workspace, folder


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"id": str, "label": str}, keep_default_na=False).set_index("id")


def test_every_image_has_a_line_and_the_prediction_that_it_got_as_a_test_image(photos) -> None:
    workspace, folder = photos
    out = folder.parent / "predictions.csv"
    output = workspace.do("predict-folder", "--folder", str(folder), "--out", str(out))
    table, classes = read(out), load_prepared(workspace.work / "data").competition.classes
    assert list(table.columns) == ["label", *classes, "problem"] and len(table) == IMAGES + 2
    assert table.index.tolist() == sorted(table.index)
    readable = table.drop(["cut.png", "page.jpg"])
    ids = np.array([Path(name).stem for name in readable.index])
    _, probs = load_scores(workspace.blend / "test.npz", ids)
    assert np.abs(readable[list(classes)].astype(float).to_numpy() - probs).max() < 2e-3  # float16, other batches
    (submission,) = workspace.submissions.glob("*.csv")
    written = pd.read_csv(submission, dtype=str).set_index("id")["label"].loc[ids].astype(int)
    assert readable["label"].tolist() == [classes[number] for number in written]
    assert (readable["problem"] == "").all()
    damaged = table.loc[["cut.png", "page.jpg"]]
    assert (damaged[["label", *classes]] == "").all(axis=None) and (damaged["problem"] != "").all()
    assert "40 images by the blend" in output and "2 images could not be read and have no prediction" in output
    assert "page.jpg: it is a web page" in output and "1 image (.heic) is not read" in output


@pytest.mark.parametrize(
    ("folder", "out", "message"),
    [
        ("", "out.csv", "FOLDER= is not given; state a folder of images"),
        ("nowhere", "out.csv", "FOLDER=nowhere does not exist; expected a folder of images"),
        ("docs/reference", "out.csv", "no image was found"),
        (".", "docs/photo.JPG", "OUT=docs/photo.JPG: expected a CSV file, this is the name of an image"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(finished: Workspace, folder: str, out: str, message: str) -> None:
    assert message in finished.refused("predict-folder", "--folder", folder, "--out", out)


def test_the_predictions_replace_no_file_of_the_user_no_link_and_no_device(tmp_path: Path) -> None:
    labels, link, pipe, earlier = (tmp_path / name for name in ("labels.csv", "link.csv", "pipe", "earlier.csv"))
    labels.write_text("id,label\na.jpg,cat\n")
    link.symlink_to(labels)
    os.mkfifo(pipe)
    earlier.write_text("id,label,cat,problem\n")
    with pytest.raises(UserError, match="not written by predict-folder; choose another name"):
        require_writable(labels)
    for path in (link, pipe, Path("/dev/null")):
        with pytest.raises(UserError, match="this is a link, a device or a pipe"):
            require_writable(path)
    require_writable(earlier)


def test_names_of_images_are_neither_formulas_nor_lines_of_their_own_nor_an_error(tmp_path: Path) -> None:
    not_utf8 = b"caf\xe9.jpg".decode(errors="surrogateescape")
    names = ["=1+1.jpg", "+1.jpg", "-1.jpg", "@A1.jpg", "a,b.jpg", "two\nlines.jpg", not_utf8]
    table = prediction_table(CALLED_ID_AND_LABEL, names, np.full((len(names), 2), 0.5), np.zeros(len(names), int))
    write_predictions(table, {"a,b.jpg": "cut"}, CALLED_ID_AND_LABEL, tmp_path / "out.csv")
    written = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    formulas = ["./=1+1.jpg", "./+1.jpg", "./-1.jpg", "./@A1.jpg"]
    assert written.iloc[:, 0].tolist() == [*formulas, "a,b.jpg", "two\nlines.jpg", "caf\\udce9.jpg"]
    assert written["problem"].tolist() == ["", "", "", "", "cut", "", ""]
    assert written.columns[1:3].tolist() == ["row_label", "id"]  # columns of ours give way to classes of the same name


def test_a_member_alone_predicts_by_its_own_models(photos, tmp_path: Path) -> None:
    workspace, folder = photos
    out = tmp_path / "slim.csv"
    output = workspace.do("predict-folder", "--folder", str(folder / "a"), "--out", str(out), "--member", "slim")
    table, classes = read(out), load_prepared(workspace.work / "data").competition.classes
    probs = table[list(classes)].astype(float).to_numpy()
    assert "by member slim" in output and len(table) == IMAGES // 2
    assert table["label"].tolist() == [classes[number] for number in probs.argmax(1)]
