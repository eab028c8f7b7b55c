"""A user's own images, predictions and plugins (the examples of docs/plugins.md), from the folder to the report."""

import json
import re
from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import ROOT, pixels_of, save_images
from stages import MAIN_JOB, Workspace, new_workspace

from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.ensemble.metrics import METRICS
from competition.files.manifest import sha256
from competition.workspace.current_blend import current_blend, stored_blends

CLASSES, EACH, FOLDS = ("blue", "green", "red"), 15, 3
PARAMS = f"""
extends: {ROOT}/tests/small.yaml
competition: {{adapter: folder, source: SOURCE}}
prepare: {{folds: 3}}
train: {{epochs: 1, batch: 15}}
predict: {{batch: 16, views: [identity, flip_lr]}}
"""


def write_images(folder: Path, number: int, first: int = 0, has_class_folders: bool = False) -> list[str]:
    """`number` images of each class as <class><n>.png, numbered from `first`; returns their ids, class by class."""
    labels = np.repeat([2, 1, 0], number)  # the colours of CLASSES are the channels from the last to the first
    names = [(name, f"{name}{n}") for name in CLASSES for n in range(first, first + number)]
    files = [f"{label}/{name}.png" if has_class_folders else f"{name}.png" for label, name in names]
    save_images(folder, files, pixels_of(labels, seed=first))
    return [name for _, name in names]


def photo_workspace(folder: Path) -> Workspace:
    return new_workspace(folder, PARAMS.replace("SOURCE", str(folder / "photos")))


@pytest.fixture(scope="module")
def cross_validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """Class folders without test images after the whole main job, and what `blend` printed. Not to be changed."""
    workspace = photo_workspace(tmp_path_factory.mktemp("folders"))
    write_images(workspace.folder / "photos", EACH, has_class_folders=True)
    return workspace, workspace.do_in_one_process(*MAIN_JOB)


def test_without_test_images_the_result_is_an_honest_score_and_later_commands_cope(cross_validated) -> None:
    workspace, output = cross_validated
    assert "no submission is written, because there are no test images; `make predict-folder" in output
    assert "download: 45 files and sample_submission.csv, " in output and "expected on" not in output
    assert not list(workspace.submissions.glob("*.csv"))
    scores = workspace.scores
    assert (scores["honest_rows"], scores["test_rows"], scores["leaderboard_band"]) == (45, 0, None)
    answers = pd.read_csv(workspace.blend / "honest_oof.csv")
    labels = answers["id"].str.split("/").str[0].map(CLASSES.index).to_numpy()
    metric = METRICS["macro_f1_present"]
    assert scores["honest"] == score_with_error(labels, answers["label"].to_numpy(), Evaluation(metric, 3, 50, 0)).value
    # Every later command copes.
    for stage in ("submit", "grade"):
        assert "has no test images, so there is no submission" in workspace.refused_here(stage)
    workspace.here("submissions", "leaderboard", "list_blends", "folds", "report")
    assert "no test images: cross-validation only" in workspace.page and "expected on test rows" not in workspace.page


def test_a_sample_submission_of_other_ids_than_the_test_images_ends_make_download(cross_validated, tmp_path) -> None:
    workspace, sets = cross_validated[0].copy_to(tmp_path), f"competition.source={tmp_path}/photos"
    write_images(tmp_path / "photos" / "test", 1, first=90)
    (tmp_path / "photos" / "sample_submission.csv").write_text("id,label\nblue90,red\ngreen90,red\nred90,red\n")
    workspace.here("download", sets=sets)
    assert "the tables and the sample must have the same ids" in workspace.refused_here("prepare", sets)


def test_a_source_that_does_not_exist_is_named_with_its_place_and_the_most_similar_name_beside_it(tmp_path) -> None:
    workspace = photo_workspace(tmp_path)
    for name in ("fotos", "words"):
        (tmp_path / name).mkdir()
    refused = workspace.refused_here("download")
    assert re.search(r"\.yaml line \d+: competition\.source: \S+/photos was not found; expected a zip file", refused)
    assert f"did you mean '{tmp_path}/fotos'?" in refused
    refused = workspace.refused_here("download", f"competition.source={tmp_path}/zebras")
    assert "SET competition.source: " in refused and "did you mean" not in refused


def test_a_description_of_another_version_is_refused_with_the_command_that_rewrites_it(tmp_path) -> None:
    workspace = photo_workspace(tmp_path)
    write_images(tmp_path / "photos", EACH, has_class_folders=True)
    workspace.here("download", "prepare")
    described, manifest = (workspace.work / "data" / name for name in ("competition.json", "manifest.json"))
    own, stored = described.read_text(), json.loads(manifest.read_text())
    described.write_text(json.dumps({**json.loads(own), "later": 1}))
    stored["files"][described.name] = sha256(described)
    manifest.write_text(json.dumps(stored))
    workspace.here("download", "prepare")  # the file is what its manifest says
    assert "later: Unexpected keyword argument; `make prepare FORCE=1` rewrites" in workspace.refused_here("folds")
    workspace.here("prepare", force=True)
    assert described.read_text() == own


# Each example of docs/external_predictions.md after its training part: name, what the training part leaves.
DOC = (ROOT / "docs" / "external_predictions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (Begin|Save) \(tested\)(.*?)```", DOC, re.DOTALL)
MEMBERS = dict(re.findall(r"```yaml\nmembers:\n  (\w+):\s+\{?predictions: \{(.*?)\}\}?\n```", DOC))


def left_by_training(name: str, folds: pd.DataFrame, test: pd.DataFrame, classes: list[str]) -> dict[str, object]:
    """The variables of an example's first part: arrays and tables of the shapes and types that its framework gives."""
    rng = np.random.default_rng(len(name))

    def probs(rows: pd.DataFrame) -> np.ndarray:
        is_truth = rows["id"].str.extract(r"([a-z]+)[0-9]+(?:[.][a-z]+)?$")[0].to_numpy()[:, None] == np.array(classes)
        weights = (rng.random(is_truth.shape) + 4 * is_truth).astype(np.float32)
        return weights / weights.sum(1, keepdims=True)

    held_out, tests = [folds[folds["fold"] == fold] for fold in range(FOLDS)], [test] * FOLDS
    if name == "torch":
        return {"oof_logits": np.log(probs(folds)), "test_logits": [np.log(probs(rows)) for rows in tests]}
    if name == "fastai":
        parts = [(part["id"], classes[::-1], probs(part)[:, ::-1]) for part in held_out]
        return {"oof_parts": parts, "test_parts": [(classes[::-1], probs(test)[:, ::-1]) for test in tests]}
    assert name == "autogluon"
    tables = [pd.DataFrame(probs(rows), rows.index, classes) for rows in (*held_out, *tests)]
    return {"oof_tables": tables[:FOLDS], "test_tables": tables[FOLDS:]}


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A table and a test folder, and three members by the examples of the documentation, none trained here."""
    workspace = photo_workspace(folder := tmp_path_factory.mktemp("external"))
    members = "".join(f"\n  {name}: {{predictions: {{{files}}}}}" for name, files in MEMBERS.items())
    members = re.sub(r"[a-z_0-9]+[.](npz|csv)", lambda file: f"{folder}/{file[0]}", members)
    text = f"{workspace.params.read_text()}members:{members}\n"
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
    workspace, output = external, external.here("train", "predict", "blend", "report")
    assert list(MEMBERS) == ["torch", "fastai", "autogluon"]
    assert "train: nothing to train, because every member was trained elsewhere\n" in output
    assert "folds unknown" not in output and "other folds than ours" not in output and "not out-of-fold" not in output
    scores = workspace.scores
    assert set(scores["members"]) == set(MEMBERS) and all(one["score"] > 0.7 for one in scores["members"].values())
    (submission,) = workspace.submissions.glob("*.csv")
    answers = pd.read_csv(submission)
    truth = answers["id"].str.extract("([a-z]+)[0-9]")[0]
    assert len(answers) == 21 and (answers["label"] == truth).mean() > 0.9


def test_a_blend_of_other_files_is_not_taken_for_that_of_the_stated_ones(external, tmp_path) -> None:
    workspace = external.copy_to(tmp_path)
    workspace.here("blend")
    first = stored_blends(workspace.work)[0][0]
    stated = np.load(external.folder / "torch_oof.npz")
    for number, probs in enumerate((stated["probs"] ** 2, stated["probs"] ** 3), 1):
        np.savez(tmp_path / f"other{number}.npz", **{**stated, "probs": probs / probs.sum(-1, keepdims=True)})
    sets = "members.torch.predictions.oof={}/other{}.npz"
    workspace.here("blend", sets=sets.format(tmp_path, 1))
    assert stored_blends(workspace.work)[0][0] != first == current_blend(workspace.job().workspace)
    workspace.here("report", sets=sets.format(tmp_path, 2))
    assert "The blend has other members, fold models or predictions than " in workspace.page


def test_the_records_of_digits_are_read_as_documented(finished: Workspace, tmp_path: Path, monkeypatch) -> None:
    (code,) = re.findall(r"```python\n# Read the records of a competition \(tested\)(.*?)```", DOC, re.DOTALL)
    (tmp_path / "work").symlink_to(finished.work.parent)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, dict[str, object]] = {}
    exec(code.replace("work/digits", "work/small"), variables)
    ids = pd.read_csv(finished.work / "data" / "index.csv", dtype={"id": str})["id"]
    assert set(variables["images"]) == set(ids)


PLUGIN_PARAMS = f"""
extends: {ROOT}/tests/small.yaml
plugins: my_plugins.py
competition: {{adapter: png_digits, metric: balanced_accuracy}}
train: {{epochs: 6, batch: 50, learning_rate: 0.02, augment: {{blot: 0.1, greyscale: 0.1, dimmed: 0.2, noise: 0.01}}}}
members:
  tiny: {{architecture: tiny, image_size: 16, alpha: 1.0, weights: none}}
predict: {{batch: 100, views: [identity, inverted, inverted+shift_up]}}
"""


def test_every_kind_of_plugin_works_in_every_stage_and_a_change_repeats_only_what_uses_it(tmp_path: Path) -> None:
    workspace, plugins = new_workspace(tmp_path, PLUGIN_PARAMS), tmp_path / "my_plugins.py"
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 6
    plugins.write_text("\n\n".join(examples))
    output = workspace.do_in_one_process(*MAIN_JOB, "report", "grade")
    words = ("450 train, 150 test, 10 classes; metric balanced_accuracy", "3 views of 2 fold models", "private 0.")
    assert [word for word in (*words, "honest balanced_accuracy 0.") if word not in output] == []
    first = workspace.scores
    assert first["metric"] == "balanced_accuracy" and first["honest"] > 0.2 and first["standard_error"] > 0.005
    assert len((tmp_path / "epochs.txt").read_text().splitlines()) == 12  # six epochs of two fold models

    plugins.write_text(plugins.read_text().replace("np.unique(labels)])", "np.unique(labels)]) / 2"))
    output = workspace.do_in_one_process("train", "blend")
    assert "tiny: folds 0, 1 current" in output and "blend: current" not in output
    assert workspace.scores["honest"] == first["honest"] / 2
    plugins.write_text(plugins.read_text().replace("return 255.0 - images", "return 254.0 - images"))
    assert "predict tiny: on 1 x cpu; 3 views of 2 fold models" in workspace.do("predict")
