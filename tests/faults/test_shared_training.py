"""Several `make train` in one work folder share its fold models."""

import os
import re

import pytest
from builders import ROOT
from preloaded import run_preloaded
from stages import StageResult, Workspace

pytestmark = pytest.mark.timeout(600)


def train_twice(workspace: Workspace, *options: str) -> tuple[list[str], list[list[str]]]:
    """The outputs of two `make train` at once, and the fold models that each trained."""
    results: list[StageResult] = []
    arguments = workspace.command("train", *options)[3:]
    first = run_preloaded(
        "pipelines", arguments, ROOT, os.environ, meanwhile=lambda _: results.append(workspace.run("train", *options))
    )
    results.append(StageResult(*first))
    assert [result.code for result in results] == [0, 0], results
    outputs = [result.out for result in results]
    return outputs, [re.findall(r"train (\w+ fold \d): \w+ [\d.]+ on its held-out rows", output) for output in outputs]


MODELS = [f"{name} fold {fold}" for name in ("slim", "wide") for fold in range(3)]


def test_two_processes_train_each_fold_model_once_and_both_end_with_all(finished, untrained) -> None:
    outputs, trained = train_twice(untrained)
    assert sorted(trained[0] + trained[1]) == MODELS
    assert all(trained), outputs  # each had a share
    assert all("wide: 3 folds, mean held-out score" in output for output in outputs)
    assert untrained.weights() == finished.weights()


def test_two_processes_with_force_share_the_models_instead_of_refusing_each_other(finished, tmp_path) -> None:
    workspace = finished.copy_to(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in workspace.work.glob("members/*/*/fold*/manifest.json")}
    outputs, trained = train_twice(workspace, "--force")
    # One that the first process made again before the second began is made again by that, too.
    assert sorted({*trained[0], *trained[1]}) == MODELS and all(trained), outputs
    assert len(trained[0] + trained[1]) < 2 * len(MODELS)
    assert all(path.stat().st_mtime_ns > written for path, written in before.items()) and len(before) == len(MODELS)
    assert workspace.weights() == finished.weights()
    assert not list(workspace.work.glob("members/*/*/again")) and not list(workspace.work.rglob("*.holder.lock"))
