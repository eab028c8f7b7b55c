"""A user's own images and a user's own predictions, from the folder to the report, as real processes."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import ROOT, pixels_of
from stages import MAIN_JOB, Workspace

from competition.config.params_file import load_params
from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.ensemble.metrics import METRICS
from competition.prepare.decoding import encode_png
from competition.workspace.current_blend import current_blend
from competition.workspace.dependencies import newest_blend
from competition.workspace.workspace import Workspace as LibraryWorkspace

CLASSES, EACH, FOLDS = ("blue", "green", "red"), 15, 3
PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: folder, source: SOURCE}}
prepare: {{folds: 3}}
train: {{epochs: 1, batch: 15}}
members: MEMBERS
predict: {{batch: 16, views: [identity, flip_lr]}}
policy: {{rounds: 2}}
blend: {{rounds: 3, bags: 2}}
honest: {{resamples: 50}}
"""
SLIM = "{slim: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}"


def write_images(folder: Path, number: int, first: int = 0) -> list[Path]:
    """`number` images of each class as <class><n>.png, numbered from `first`; returns their paths, class by class."""
    labels = np.repeat([2, 1, 0], number)  # the colours of CLASSES are the channels from the last to the first
    pixels = pixels_of(labels, seed=first)
    paths = [folder / f"{name}{n}.png" for name in CLASSES for n in range(first, first + number)]
    folder.mkdir(parents=True, exist_ok=True)
    for path, image in zip(paths, pixels, strict=True):
        path.write_bytes(encode_png(image))
    return paths


def photo_workspace(folder: Path, members: str) -> Workspace:
    folder.mkdir(parents=True, exist_ok=True)
    text = PARAMS.replace("SOURCE", str(folder / "photos")).replace("MEMBERS", members)
    (folder / "params.yaml").write_text(text)
    return Workspace(folder)


@pytest.fixture(scope="module")
def cross_validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """Class folders without test images after the whole main job, and what `blend` printed. Not to be changed."""
    workspace = photo_workspace(tmp_path_factory.mktemp("folders"), SLIM)
    for path in write_images(workspace.folder / "flat", EACH):
        target = workspace.folder / "photos" / path.stem.rstrip("0123456789") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return workspace, workspace.do_in_one_process(*MAIN_JOB)


def test_without_test_images_the_result_is_an_honest_score_and_no_submission(cross_validated) -> None:
    workspace, output = cross_validated
    assert "no submission is written, because there are no test images" in output and "expected on" not in output
    assert not list(workspace.submissions.glob("*.csv")) and not (workspace.blend / "submission.csv").exists()
    scores = json.loads((workspace.blend / "scores.json").read_text())
    assert (scores["honest_rows"], scores["test_rows"], scores["leaderboard_band"]) == (45, 0, None)
    answers = pd.read_csv(workspace.blend / "honest_oof.csv")
    labels = answers["id"].str.split("/").str[0].map(CLASSES.index).to_numpy()
    metric = METRICS["macro_f1_present"]
    assert scores["honest"] == score_with_error(labels, answers["label"].to_numpy(), Evaluation(metric, 3, 50, 0)).value


def test_without_test_images_every_later_command_copes(cross_validated) -> None:
    workspace, _ = cross_validated
    for stage in ("submit", "grade"):
        assert "has no test images, so there is no submission" in workspace.refused(stage)
    output = workspace.do_in_one_process("submissions", "leaderboard", "list_blends", "folds", "report")
    assert "is not on Kaggle (competition.slug is empty)" in output and "0 rows in" in output
    assert "list-blends: While choosing: on the rows that it was chosen on, optimistic" in output
    page = (workspace.work / "report.html").read_text(encoding="utf-8")
    assert "no test images: cross-validation only" in page and "expected leaderboard" not in page


def test_a_sample_submission_of_other_ids_than_the_test_images_ends_make_download(cross_validated, tmp_path) -> None:
    """Not `make predict`, hours later."""
    workspace, sets = cross_validated[0].copy_to(tmp_path), f"competition.source={tmp_path}/photos"
    write_images(tmp_path / "photos" / "test", 1, first=90)
    (tmp_path / "photos" / "sample_submission.csv").write_text("id,label\nblue90,red\ngreen90,red\nred90,red\n")
    workspace.do("download", sets=sets)
    refused = workspace.refused("prepare", sets=sets)
    assert "test/blue90.png is blue90 in the sample" in refused


# Each example of docs/external_predictions.md after its training part: name, what the training part leaves.
DOC = (ROOT / "docs" / "external_predictions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (Begin|Save) \(tested\)(.*?)```", DOC, re.DOTALL)
MEMBERS = dict(re.findall(r"```yaml\nmembers:\n  (\w+):\s+\{?predictions: \{(.*?)\}\}?\n```", DOC))


def left_by_training(name: str, folds: pd.DataFrame, test: pd.DataFrame, classes: list[str]) -> dict[str, object]:
    """The variables of an example's first part: arrays and tables of the shapes and types that its framework gives."""
    rng = np.random.default_rng(len(name))
    numbers = range(FOLDS)

    def logits(rows: pd.DataFrame) -> np.ndarray:
        truth = [classes.index(str(row).rstrip("0123456789")) for row in rows["id"]]
        return (rng.normal(size=(len(rows), len(classes))) + 3 * np.eye(len(classes))[truth]).astype(np.float32)

    def probs(rows: pd.DataFrame) -> np.ndarray:
        exponentials = np.exp(logits(rows))
        return exponentials / exponentials.sum(1, keepdims=True)

    held_out = [folds[folds["fold"] == fold] for fold in numbers]
    if name == "torch":
        return {"oof_logits": logits(folds), "test_logits": [logits(test) for _ in numbers]}
    if name == "fastai":
        parts = [(part["id"], classes[::-1], probs(part)[:, ::-1]) for part in held_out]
        return {"oof_parts": parts, "test_parts": [(classes[::-1], probs(test)[:, ::-1]) for _ in numbers]}
    assert name == "autogluon"

    def table(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(probs(rows), rows.index, classes)

    return {"oof_tables": [table(part) for part in held_out], "test_tables": [table(test) for _ in numbers]}


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """A table and a test folder, three members by the examples of the documentation, none trained here; and the digest."""
    workspace = photo_workspace(folder := tmp_path_factory.mktemp("external"), "MEMBERS")
    members = ""
    for name, files in MEMBERS.items():
        absolute = re.sub(r"[a-z_0-9]+[.](npz|csv)", lambda file: f"{folder}/{file[0]}", files)
        members += f"\n  {name}: {{predictions: {{{absolute}}}}}"
    text = workspace.params.read_text().replace("MEMBERS", members)
    workspace.params.write_text(text.replace(", folds: DIGEST", ""))  # the digest is known after `make folds`
    train = write_images(workspace.folder / "photos" / "train", EACH)
    write_images(workspace.folder / "photos" / "test", 7, first=100)
    rows = [f"{path.stem},{path.stem.rstrip('0123456789')}" for path in train]
    (workspace.folder / "photos" / "train.csv").write_text("\n".join(["id,label", *rows, ""]))
    (digest,) = re.findall(r"\b[0-9a-f]{64}\b", workspace.do_in_one_process("download", "prepare", "folds"))
    (begin,) = (code for kind, code in BLOCKS if kind == "Begin")
    saves = [code for kind, code in BLOCKS if kind == "Save"]
    before = Path.cwd()
    os.chdir(workspace.folder)
    try:
        for name, save in zip(MEMBERS, saves, strict=True):
            variables: dict[str, object] = {}
            exec("#" + begin.replace("work/photos", "work/small"), variables)
            arrays = left_by_training(name, variables["folds"], variables["test"], variables["classes"])
            exec("#" + save, {**variables, **arrays})
    finally:
        os.chdir(before)
    workspace.params.write_text(text.replace("DIGEST", digest))
    return workspace, digest


def test_the_examples_of_every_framework_are_blended_and_nothing_is_trained_here(external) -> None:
    workspace, _ = external
    output = workspace.do_in_one_process("train", "predict", "blend", "report")
    assert list(MEMBERS) == ["torch", "fastai", "autogluon"]
    assert "train: nothing to train, because every member was trained elsewhere; `make blend` blends them\n" in output
    assert "folds unknown" not in output and "other folds than ours" not in output and "not out-of-fold" not in output
    scores = json.loads((workspace.blend / "scores.json").read_text())
    assert set(scores["members"]) == set(MEMBERS) and all(one["score"] > 0.7 for one in scores["members"].values())
    (submission,) = workspace.submissions.glob("*.csv")
    answers = pd.read_csv(submission)
    truth = answers["id"].str.replace(r"\d+$", "", regex=True)
    assert len(answers) == 21 and (answers["label"] == truth).mean() > 0.9
    sources = json.loads((workspace.blend / "manifest.json").read_text())["depends"]["predictions"]
    files = {name: len(source["test"].split(",")) for name, source in sources.items()}
    assert files == {"torch": 1, "fastai": 1, "autogluon": 3}  # one file with three fold models, or one each


def test_a_blend_of_other_files_is_not_taken_for_that_of_the_stated_ones(external, tmp_path) -> None:
    workspace = external[0].copy_to(tmp_path)
    workspace.do_in_one_process("blend")
    first = newest_blend(workspace.work)
    stated = np.load(external[0].folder / "torch_oof.npz")
    for number in (1, 2):
        probs = stated["probs"] ** (1 + number)
        arrays = {**stated, "probs": probs / probs.sum(-1, keepdims=True)}
        np.savez(tmp_path / f"other{number}.npz", **arrays)
    sets = "members.torch.predictions.oof={}/other{}.npz"
    workspace.do("blend", sets=sets.format(tmp_path, 1))
    here = LibraryWorkspace(workspace.work, load_params(workspace.params))
    assert newest_blend(workspace.work) != first == current_blend(here)
    workspace.do("report", sets=sets.format(tmp_path, 2))
    page = (workspace.work / "report.html").read_text(encoding="utf-8")
    assert "The blend has other predictions of torch than its files have now" in page


def test_a_local_competition_without_a_solution_says_what_to_do_and_is_graded_once_it_has_one(external) -> None:
    workspace, _ = external
    advice = "put the answers into competition.source as private/solution.csv with the columns id and label"
    assert advice in workspace.do("submit") and advice in workspace.refused("grade")
    names = [f"{name}{n}" for name in CLASSES for n in range(100, 107)]
    (workspace.folder / "photos" / "private").mkdir()
    solution = pd.DataFrame({"id": names, "label": [name.rstrip("0123456789") for name in names]})
    solution.to_csv(workspace.folder / "photos" / "private" / "solution.csv", index=False)
    output = workspace.do_in_one_process("download", "grade")
    assert re.search(r"grade: \w+\.csv: private (0\.9\d+|1\.0000) \(21 rows\)", output)


def test_the_records_of_digits_are_read_as_documented(finished: Workspace, tmp_path: Path, monkeypatch) -> None:
    (code,) = re.findall(r"```python\n# Read the records of a competition \(tested\)(.*?)```", DOC, re.DOTALL)
    (tmp_path / "work").symlink_to(finished.work.parent)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, dict[str, object]] = {}
    exec(code.replace("work/digits", "work/small"), variables)
    ids = pd.read_csv(finished.work / "data" / "index.csv", dtype={"id": str})["id"]
    assert set(variables["images"]) == set(ids)
