"""A user's own images and a user's own predictions, from the folder to the report, as real processes."""

import json
import re
from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import ROOT, pixels_of
from stages import MAIN_JOB, Workspace, new_workspace

from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.ensemble.metrics import METRICS
from competition.prepare.decoding import encode_png
from competition.workspace.current_blend import current_blend
from competition.workspace.dependencies import newest_blend

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


def write_images(folder: Path, number: int, first: int = 0, has_class_folders: bool = False) -> list[str]:
    """`number` images of each class as <class><n>.png, numbered from `first`; returns their ids, class by class."""
    labels = np.repeat([2, 1, 0], number)  # the colours of CLASSES are the channels from the last to the first
    names = [(name, f"{name}{n}") for name in CLASSES for n in range(first, first + number)]
    for (label, name), image in zip(names, pixels_of(labels, seed=first), strict=True):
        path = folder / (label if has_class_folders else "") / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(image))
    return [name for _, name in names]


def photo_workspace(folder: Path, members: str) -> Workspace:
    return new_workspace(folder, PARAMS.replace("SOURCE", str(folder / "photos")).replace("MEMBERS", members))


@pytest.fixture(scope="module")
def cross_validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """Class folders without test images after the whole main job, and what `blend` printed. Not to be changed."""
    workspace = photo_workspace(tmp_path_factory.mktemp("folders"), SLIM)
    write_images(workspace.folder / "photos", EACH, has_class_folders=True)
    return workspace, workspace.do_in_one_process(*MAIN_JOB)


def test_without_test_images_the_result_is_an_honest_score_and_later_commands_cope(cross_validated) -> None:
    workspace, output = cross_validated
    assert "no submission is written, because there are no test images" in output and "expected on" not in output
    assert not list(workspace.submissions.glob("*.csv")) and not (workspace.blend / "submission.csv").exists()
    scores = workspace.scores
    assert (scores["honest_rows"], scores["test_rows"], scores["leaderboard_band"]) == (45, 0, None)
    answers = pd.read_csv(workspace.blend / "honest_oof.csv")
    labels = answers["id"].str.split("/").str[0].map(CLASSES.index).to_numpy()
    metric = METRICS["macro_f1_present"]
    assert scores["honest"] == score_with_error(labels, answers["label"].to_numpy(), Evaluation(metric, 3, 50, 0)).value
    # Every later command copes.
    for stage in ("submit", "grade"):
        assert "has no test images, so there is no submission" in workspace.refused_here(stage)
    output = workspace.here("submissions", "leaderboard", "list_blends", "folds", "report")
    assert "is not on Kaggle (competition.slug is empty)" in output and "0 rows in" in output
    assert "list-blends: While choosing: on the rows that it was chosen on, optimistic" in output
    assert "no test images: cross-validation only" in workspace.page and "expected leaderboard" not in workspace.page


def test_a_sample_submission_of_other_ids_than_the_test_images_ends_make_download(cross_validated, tmp_path) -> None:
    """Not `make predict`, hours later."""
    workspace, sets = cross_validated[0].copy_to(tmp_path), f"competition.source={tmp_path}/photos"
    write_images(tmp_path / "photos" / "test", 1, first=90)
    (tmp_path / "photos" / "sample_submission.csv").write_text("id,label\nblue90,red\ngreen90,red\nred90,red\n")
    workspace.here("download", sets=sets)
    assert "test/blue90.png is blue90 in the sample" in workspace.refused_here("prepare", sets)


# Each example of docs/external_predictions.md after its training part: name, what the training part leaves.
DOC = (ROOT / "docs" / "external_predictions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (Begin|Save) \(tested\)(.*?)```", DOC, re.DOTALL)
MEMBERS = dict(re.findall(r"```yaml\nmembers:\n  (\w+):\s+\{?predictions: \{(.*?)\}\}?\n```", DOC))


def left_by_training(name: str, folds: pd.DataFrame, test: pd.DataFrame, classes: list[str]) -> dict[str, object]:
    """The variables of an example's first part: arrays and tables of the shapes and types that its framework gives."""
    rng = np.random.default_rng(len(name))

    def logits(rows: pd.DataFrame) -> np.ndarray:
        truth = [classes.index(str(row).rstrip("0123456789")) for row in rows["id"]]
        return (rng.normal(size=(len(rows), len(classes))) + 3 * np.eye(len(classes))[truth]).astype(np.float32)

    def probs(rows: pd.DataFrame) -> np.ndarray:
        exponentials = np.exp(logits(rows))
        return exponentials / exponentials.sum(1, keepdims=True)

    held_out, tests = [folds[folds["fold"] == fold] for fold in range(FOLDS)], [test] * FOLDS
    if name == "torch":
        return {"oof_logits": logits(folds), "test_logits": list(map(logits, tests))}
    if name == "fastai":
        parts = [(part["id"], classes[::-1], probs(part)[:, ::-1]) for part in held_out]
        return {"oof_parts": parts, "test_parts": [(classes[::-1], probs(test)[:, ::-1]) for test in tests]}
    assert name == "autogluon"
    tables = [pd.DataFrame(probs(rows), rows.index, classes) for rows in (*held_out, *tests)]
    return {"oof_tables": tables[:FOLDS], "test_tables": tables[FOLDS:]}


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A table and a test folder, and three members by the examples of the documentation, none trained here."""
    workspace = photo_workspace(folder := tmp_path_factory.mktemp("external"), "MEMBERS")
    members = "".join(f"\n  {name}: {{predictions: {{{files}}}}}" for name, files in MEMBERS.items())
    members = re.sub(r"[a-z_0-9]+[.](npz|csv)", lambda file: f"{folder}/{file[0]}", members)
    text = workspace.params.read_text().replace("MEMBERS", members)
    workspace.params.write_text(text.replace(", folds: DIGEST", ""))  # the digest is known after `make folds`
    train = write_images(workspace.folder / "photos" / "train", EACH)
    write_images(workspace.folder / "photos" / "test", 7, first=100)
    rows = [f"{name},{name.rstrip('0123456789')}" for name in train]
    (workspace.folder / "photos" / "train.csv").write_text("\n".join(["id,label", *rows, ""]))
    (digest,) = re.findall(r"\b[0-9a-f]{64}\b", workspace.do_in_one_process("download", "prepare", "folds"))
    (begin,) = (code for kind, code in BLOCKS if kind == "Begin")
    saves = [code for kind, code in BLOCKS if kind == "Save"]
    with chdir(workspace.folder):
        for name, save in zip(MEMBERS, saves, strict=True):
            variables: dict[str, object] = {}
            exec("#" + begin.replace("work/photos", "work/small"), variables)
            arrays = left_by_training(name, variables["folds"], variables["test"], variables["classes"])
            exec("#" + save, {**variables, **arrays})
    workspace.params.write_text(text.replace("DIGEST", digest))
    return workspace


def test_the_examples_of_every_framework_are_blended_and_nothing_is_trained_here(external) -> None:
    workspace = external
    output = workspace.here("train", "predict", "blend", "report")
    assert list(MEMBERS) == ["torch", "fastai", "autogluon"]
    assert "train: nothing to train, because every member was trained elsewhere; `make blend` blends them" in output
    assert "folds unknown" not in output and "other folds than ours" not in output and "not out-of-fold" not in output
    scores = workspace.scores
    assert set(scores["members"]) == set(MEMBERS) and all(one["score"] > 0.7 for one in scores["members"].values())
    (submission,) = workspace.submissions.glob("*.csv")
    answers = pd.read_csv(submission)
    truth = answers["id"].str.replace(r"\d+$", "", regex=True)
    assert len(answers) == 21 and (answers["label"] == truth).mean() > 0.9
    sources = json.loads((workspace.blend / "manifest.json").read_text())["depends"]["predictions"]
    files = {name: len(source["test"].split(",")) for name, source in sources.items()}
    assert files == {"torch": 1, "fastai": 1, "autogluon": 3}  # one file with three fold models, or one each


def test_a_blend_of_other_files_is_not_taken_for_that_of_the_stated_ones(external, tmp_path) -> None:
    workspace = external.copy_to(tmp_path)
    workspace.here("blend")
    first = newest_blend(workspace.work)
    stated = np.load(external.folder / "torch_oof.npz")
    for number in (1, 2):
        probs = stated["probs"] ** (1 + number)
        arrays = {**stated, "probs": probs / probs.sum(-1, keepdims=True)}
        np.savez(tmp_path / f"other{number}.npz", **arrays)
    sets = "members.torch.predictions.oof={}/other{}.npz"
    workspace.here("blend", sets=sets.format(tmp_path, 1))
    assert newest_blend(workspace.work) != first == current_blend(workspace.job().workspace)
    workspace.here("report", sets=sets.format(tmp_path, 2))
    assert "The blend has other predictions of torch than its files have now" in workspace.page


def test_the_records_of_digits_are_read_as_documented(finished: Workspace, tmp_path: Path, monkeypatch) -> None:
    (code,) = re.findall(r"```python\n# Read the records of a competition \(tested\)(.*?)```", DOC, re.DOTALL)
    (tmp_path / "work").symlink_to(finished.work.parent)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, dict[str, object]] = {}
    exec(code.replace("work/digits", "work/small"), variables)
    ids = pd.read_csv(finished.work / "data" / "index.csv", dtype={"id": str})["id"]
    assert set(variables["images"]) == set(ids)
