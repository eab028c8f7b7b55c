"""`make export` and `goldfold predict-folder`: new images get what the models and the chain of the submission predict."""

import os
import subprocess
import sys
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import competition, files_below
from PIL import Image
from stages import Workspace

from competition.ensemble.stored_predictions import ViewPredictions, load_scores
from competition.files.image_codec import decode
from competition.files.manifest import files_intact, read_manifest
from competition.prepare import record_files
from competition.prepare.prepared import load_prepared
from competition.serving.bundle import load_bundle
from competition.serving.engines import Engine
from pipelines.serving import predict_folder

FRESH = """
import sys

class NoGoldfold:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("competition", "pipelines", "goldfold"):
            raise ImportError(name)

sys.meta_path.insert(0, NoGoldfold())
import numpy as np
import tensorflow as tf

model, inputs = tf.saved_model.load(sys.argv[1]), np.load(sys.argv[2])
result = model.signatures["serving_default"](images_16=tf.constant(inputs["pixels"]))
np.savez(sys.argv[3], **{name: value.numpy() for name, value in result.items()})
assert not {"competition", "pipelines"} & sys.modules.keys()
"""


def images_of_test_rows(workspace: Workspace) -> tuple[np.ndarray, list[bytes]]:
    """(ids, encoded images) of all test rows."""
    records = load_prepared(workspace.work / "data").records("test")
    images = [record for file in records for record in record_files.read_shard(file)]
    return np.array([record.id for record in images]), [record.image for record in images]


@pytest.fixture(scope="module")
def answers(exported: Workspace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """output -> array, for all test rows, by a process that cannot import goldfold."""
    folder = tmp_path_factory.mktemp("fresh")
    _, encoded = images_of_test_rows(exported)
    np.savez(folder / "inputs.npz", pixels=np.stack([decode(data, 16, "squash") for data in encoded]))
    model = exported.work / "export" / "blend" / "saved_model"
    command = [sys.executable, "-c", FRESH, str(model), str(folder / "inputs.npz"), str(folder / "answers.npz")]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2_000:]
    with np.load(folder / "answers.npz") as stored:
        return {name: stored[name] for name in stored.files}


def test_pixels_give_the_labels_of_the_submission_and_the_stored_probabilities(exported, answers) -> None:
    ids, _ = images_of_test_rows(exported)
    _, stored = load_scores(exported.blend / "test.npz", ids)
    np.testing.assert_allclose(answers["probabilities"], stored, atol=5e-4)  # stored views are float16
    (file,) = exported.submissions.glob("*.csv")
    submitted = pd.read_csv(file, dtype=str).set_index("id").loc[ids, "label"].tolist()
    assert len(ids) == 150 and answers["class_id"].astype(str).tolist() == submitted


def test_onnx_gives_the_same_probabilities(exported: Workspace, answers) -> None:
    bundle = load_bundle(exported.work / "export" / "blend")
    if "onnx" not in bundle.formats:
        pytest.skip("the packages of goldfold[onnx] are not installed")
    engine = Engine("onnx", exported.work / "export" / "blend", bundle)
    _, encoded = images_of_test_rows(exported)
    probs, labels = engine.run([engine.prepare(data) for data in encoded])
    np.testing.assert_allclose(probs, answers["probabilities"], atol=1e-5)
    np.testing.assert_array_equal(labels, answers["class_id"])
    one, _ = engine.run([engine.prepare(encoded[7])])  # another batch size
    np.testing.assert_allclose(one[0], probs[7], atol=1e-6)


def test_the_card_states_score_and_data_its_code_runs_and_the_manifest_covers_every_file(
    exported: Workspace, tmp_path: Path, monkeypatch
) -> None:
    folder, scores = exported.work / "export" / "blend", exported.scores
    card, manifest = (folder / "README.md").read_text(), read_manifest(folder / "manifest.json")
    assert f"{scores['honest']:.4f} ± {scores['standard_error']:.4f}" in card and "450 out-of-fold rows" in card
    assert load_prepared(exported.work / "data").digest in card
    code = "\n".join(line[4:] for line in card.splitlines() if line.startswith("    "))
    Image.new("RGB", (90, 70)).save(tmp_path / "photo.jpg")
    (tmp_path / "saved_model").symlink_to(folder / "saved_model")
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    exec(code, variables)
    assert variables["inputs"].keys() == {f"images_{size}" for size in load_bundle(folder).sizes}
    files = {name for name in files_below(folder) if not name.endswith(".lock")}
    assert manifest is not None and files_intact(folder / "manifest.json", manifest)
    assert set(manifest.files) == files - {"manifest.json"}


def test_one_member_is_exported_alone_and_a_second_export_is_current(exported: Workspace, tmp_path: Path) -> None:
    workspace = exported.copy_to(tmp_path)
    arguments = ("--member", "slim", "--format", "saved_model")
    assert "member slim, 3 fold models" in workspace.do("export", *arguments)
    folder = workspace.work / "export" / "member-slim"
    engine = Engine("saved_model", folder, load_bundle(folder))
    ids, encoded = images_of_test_rows(workspace)
    probs, _ = engine.run([engine.prepare(data) for data in encoded[:50]])
    stored = [ViewPredictions.load(workspace.views("slim", fold) / "test.npz").at(ids[:50]) for fold in range(3)]
    np.testing.assert_allclose(probs, np.mean([each.view("identity") for each in stored], 0), atol=5e-4)
    assert "current" in workspace.here("export", member="slim", format="saved_model")
    assert "'tflite' is not a format" in workspace.refused_here("export", format="tflite")
    changed = workspace.refused_here("export", "members.slim.alpha=0.5", member="slim")
    assert "member slim fold 0 is not trained with these parameters" in changed


def test_every_image_has_a_line_and_the_prediction_of_the_blend_or_of_a_member(workspace: Workspace, tmp_path) -> None:
    folder, out, prepared = tmp_path / "photos", tmp_path / "predictions.csv", load_prepared(workspace.work / "data")
    records = chain.from_iterable(map(record_files.read_shard, prepared.records("test")))
    for number, record in zip(range(40), records):
        place = folder / ("a" if number % 2 else "b") / f"{record.id}.png"
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_bytes(record.image)
    (folder / "cut.png").write_bytes(record.image[:-30])
    (folder / "page.jpg").write_text("<html>")
    (folder / "phone.heic").write_bytes(b"x")
    output = workspace.do("predict-folder", "--folder", str(folder), "--out", str(out))
    as_text = {"dtype": str, "keep_default_na": False, "index_col": "id"}
    table, classes = pd.read_csv(out, **as_text), prepared.competition.classes
    assert list(table.columns) == ["label", *classes, "problem"] and len(table) == 42
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
    assert "40 images by the blend" in output and "no prediction for 2 images that could not be read" in output
    assert "page.jpg: it is a web page" in output and "1 image (.heic) left out" in output
    # A member alone predicts by its own models.
    workspace.do("predict-folder", "--folder", str(folder / "a"), "--out", str(out), "--member", "slim")
    table = pd.read_csv(out, **as_text)
    best = table[list(classes)].astype(float).to_numpy().argmax(1)
    assert "accuracy" not in output  # a and b are no classes
    assert len(table) == 20 and table["label"].tolist() == [classes[number] for number in best]


def test_folders_named_as_classes_are_scored_as_the_truth_by_the_metric_of_the_competition(finished, tmp_path) -> None:
    prepared, folder = load_prepared(finished.work / "data"), tmp_path / "photos"
    classes = prepared.competition.classes
    for record in islice(chain.from_iterable(map(record_files.read_shard, prepared.records("train"))), 40):
        place = folder / classes[record.label].upper() / f"{record.id}.png"
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_bytes(record.image)
    predict = ("predict-folder", "--folder", str(folder), "--out", str(tmp_path / "out.csv"))
    output = finished.do(*predict)
    table = pd.read_csv(tmp_path / "out.csv", dtype=str)
    actual = [name.partition("/")[0].casefold() for name in table["id"]]
    share = np.mean([a == b.casefold() for a, b in zip(actual, table["label"])])
    (line,) = [line for line in output.splitlines() if "accuracy" in line]
    assert f"accuracy {share:.4f} ± 0." in line and "macro_f1 " in line and "no model has learned" in line
    (folder / "unnamed.png").write_bytes(place.read_bytes())
    assert "accuracy" not in finished.do(*predict)


def test_wrong_folders_and_files_of_the_user_are_refused(finished: Workspace, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("now").mkdir()
    Path("labels.csv").write_text("id,label\na.jpg,cat\n")
    Path("link.csv").symlink_to("labels.csv")
    os.mkfifo("pipe")
    for folder, out, message in (
        ("", "out.csv", "FOLDER= is not given; state a folder of images"),
        ("nowhere", "out.csv", "FOLDER=nowhere does not exist; expected a folder of images"),
        ("nw", "out.csv", "FOLDER=nw does not exist; expected a folder of images; did you mean 'now'?"),
        ("empty", "out.csv", "no image was found"),
        (".", "photo.JPG", "OUT=photo.JPG: expected a CSV file, this is the name of an image"),
        (".", "labels.csv", "not written by predict-folder; choose another name"),
        (".", "link.csv", "a link, a device or a pipe"),
        (".", "pipe", "a link, a device or a pipe"),
        (".", "/dev/null", "a link, a device or a pipe"),
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
