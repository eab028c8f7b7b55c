"""`goldfold predict-folder`: photos of a folder into a CSV file, by the models and the chain of the submission."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
from builders import competition
from stages import Workspace

from competition.ensemble.predictions import load_scores
from competition.prepare import record_shards
from competition.prepare.prepared import load_prepared
from pipelines.serving import predict_folder

IMAGES = 40


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"id": str, "label": str}, keep_default_na=False).set_index("id")


def test_every_image_has_a_line_and_the_prediction_of_the_blend_or_of_a_member(workspace: Workspace, tmp_path) -> None:
    """Images of test rows, two damaged ones and a photo of a telephone."""
    folder, out, prepared = tmp_path / "photos", tmp_path / "predictions.csv", load_prepared(workspace.work / "data")
    for number, (name, _, data) in zip(range(IMAGES), record_shards.read(prepared.records("test"))):
        place = folder / ("a" if number % 2 else "b") / f"{name}.png"
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_bytes(data)
    (folder / "cut.png").write_bytes(data[:-30])
    (folder / "page.jpg").write_text("<html>")
    (folder / "phone.heic").write_bytes(b"x")
    output = workspace.do("predict-folder", "--folder", str(folder), "--out", str(out))
    table, classes = read(out), prepared.competition.classes
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
    # A member alone predicts by its own models.
    output = workspace.do("predict-folder", "--folder", str(folder / "a"), "--out", str(out), "--member", "slim")
    table = read(out)
    probs = table[list(classes)].astype(float).to_numpy()
    assert f"by member slim in {out}, in place of the earlier file" in output and len(table) == IMAGES // 2
    assert table["label"].tolist() == [classes[number] for number in probs.argmax(1)]


def test_wrong_folders_and_files_of_the_user_are_refused(finished: Workspace, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("labels.csv").write_text("id,label\na.jpg,cat\n")
    Path("link.csv").symlink_to("labels.csv")
    os.mkfifo("pipe")
    for folder, out, message in (
        ("", "out.csv", "FOLDER= is not given; state a folder of images"),
        ("nowhere", "out.csv", "FOLDER=nowhere does not exist; expected a folder of images"),
        ("empty", "out.csv", "no image was found"),
        (".", "photo.JPG", "OUT=photo.JPG: expected a CSV file, this is the name of an image"),
        (".", "labels.csv", "not written by predict-folder; choose another name"),
        (".", "link.csv", "this is a link, a device or a pipe"),
        (".", "pipe", "this is a link, a device or a pipe"),
        (".", "/dev/null", "this is a link, a device or a pipe"),
    ):
        assert message in finished.refused_here("predict_folder", folder=folder, out=out)
    assert Path("labels.csv").read_text() == "id,label\na.jpg,cat\n"


def test_names_of_images_are_neither_formulas_nor_lines_of_their_own_nor_an_error(tmp_path: Path) -> None:
    not_utf8 = b"caf\xe9.jpg".decode(errors="surrogateescape")
    names = ["=1+1.jpg", "+1.jpg", "-1.jpg", "@A1.jpg", "a,b.jpg", "two\nlines.jpg", not_utf8]
    classes = competition(("id", "label"), prediction_columns=("class",), label_values=("0", "1"))
    probs, decided = np.full((len(names), 2), 0.5), np.zeros(len(names), int)
    table = predict_folder.prediction_table(classes, names, probs, decided)
    predict_folder.write_predictions(table, {"a,b.jpg": "cut"}, classes, tmp_path / "out.csv")
    predict_folder.require_writable(tmp_path / "out.csv")  # again
    written = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    formulas = ["./=1+1.jpg", "./+1.jpg", "./-1.jpg", "./@A1.jpg"]
    assert written.iloc[:, 0].tolist() == [*formulas, "a,b.jpg", "two\nlines.jpg", "caf\\udce9.jpg"]
    assert written["problem"].tolist() == ["", "", "", "", "cut", "", ""]
    assert written.columns[1:3].tolist() == ["row_label", "id"]  # columns of ours give way to classes of the same name
