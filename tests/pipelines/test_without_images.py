"""A competition of tables and predictions made elsewhere, without an image: from the download to the grade."""

from pathlib import Path

import numpy as np
import pandas as pd
from builders import ROOT, save_images
from stages import Workspace, new_workspace

CLASSES, TRAIN, TEST, FOLDS = ("ant", "bee", "cat"), 150, 60, 3
PARAMS = f"""
extends: {ROOT}/tests/small.yaml
competition: {{adapter: folder, source: SOURCE}}
prepare: {{folds: {FOLDS}, group_by: column, group_column: fold}}
tune: {{members: [], folds: []}}
members:
  weak: {{predictions: {{oof: SOURCE/../weak_oof.csv, test: SOURCE/../weak_test.csv}}}}
  strong: {{predictions: {{oof: SOURCE/../strong_oof.csv, test: SOURCE/../strong_test.csv}}}}
"""


def workspace_of(folder: Path, has_images: bool) -> Workspace:
    """Two members of different strength, whose rows are right more often than not."""
    source, rng = folder / "source", np.random.default_rng(0)
    (source / "private").mkdir(parents=True)
    labels = rng.integers(0, 3, TRAIN + TEST)
    ids = [f"{n:05}" for n in rng.permutation(TRAIN + TEST)]
    table = pd.DataFrame({"id": ids, "label": np.array(CLASSES)[labels]})
    table[:TRAIN].assign(fold=np.arange(TRAIN) % FOLDS).to_csv(source / "train.csv", index=False)
    table[["id"]][TRAIN:].to_csv(source / "test.csv", index=False)
    table[TRAIN:].assign(usage="Private").to_csv(source / "private" / "solution.csv", index=False)
    for name, signal in (("weak", 1.0), ("strong", 2.0)):
        logits = rng.normal(size=(TRAIN + TEST, 3)) + signal * np.eye(3)[labels]
        probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        predictions = pd.DataFrame(probs, columns=list(CLASSES)).assign(id=ids)
        predictions[:TRAIN].to_csv(folder / f"{name}_oof.csv", index=False)
        predictions[TRAIN:].to_csv(folder / f"{name}_test.csv", index=False)
    if has_images:
        pictures = rng.integers(0, 256, (TRAIN + TEST, 8, 8, 3)).astype(np.uint8)
        save_images(source, [f"{name}.png" for name in ids], pictures)
    return new_workspace(folder, PARAMS.replace("SOURCE", str(source)))


def test_without_images_the_score_and_the_submission_are_those_with_placeholders(tmp_path: Path) -> None:
    bare, pictured = (workspace_of(tmp_path / name, has_images=name == "pictured") for name in ("bare", "pictured"))
    stages = ("download", "prepare", "blend", "report", "grade", "folds", "label_issues", "submissions")
    for workspace in (bare, pictured):
        lines = workspace.here(*stages)
        assert ("no image files: only predictions made elsewhere" in lines) == (workspace is bare)
        assert "unreadable" not in lines and "nearly so" not in lines
    assert bare.scores["honest"] == pictured.scores["honest"] > 0.7
    assert bare.submission() == pictured.submission()
    assert not (bare.work / "data" / "records").exists()
    page = bare.page
    assert "<img" not in page and "Adversarial validation" not in page and "No pictures" not in page
    assert pd.read_csv(bare.work / "folds.csv", dtype=str, keep_default_na=False)["file"].eq("").all()
    assert bare.here("train") == "train: nothing to train, because every member was trained elsewhere"
    bare.here("blend", sets="members.weak.predictions.folds=others")  # the same predictions, doubted
    first, second = sorted(folder.name for folder in (bare.work / "blends").iterdir())
    assert "different fold models" not in bare.here("compare_blends", a=first, b=second)
    file = bare.work / "blends" / first / "scores.json"
    file.write_text(file.read_text().replace('"column fold"', '"hash"'))
    assert "NOT COMPARABLE" in bare.here("compare_blends", a=first, b=second)


def test_what_needs_images_says_so_where_there_are_none(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path, has_images=False)
    network = "members.net.architecture=cnn members.net.image_size=16 members.net.alpha=0.25 members.net.weights=none"
    needed = "no image file was found for the rows of the table, and 'net' would be trained on images: add the image"
    workspace.here("download")
    assert needed in workspace.refused_here("prepare", sets=network)
    workspace.here("prepare")
    for stage in ("train", "resolve", "predict", "blend"):
        assert needed in workspace.refused_here(stage, sets=network)
    assert "would be trained on images" in workspace.refused_here("budget", hours=1.0)
    workspace.here("blend")
    assert "external predictions only" in workspace.refused_here("grad_cam")
    assert "image; name a folder of photos" in workspace.refused_here("convert")
