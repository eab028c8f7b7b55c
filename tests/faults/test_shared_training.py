"""Several `make train` in one work folder share its fold models."""

import os
import re

import pytest
from builders import ROOT
from preloaded import run_preloaded
from stages import StageResult, Workspace

pytestmark = pytest.mark.timeout(600)


def train_twice(workspace: Workspace, *options: str) -> tuple[list[str], list[list[str]]]:
    """The outputs of two `make train MEMBER=slim` at once, and the fold models that each trained."""
    options = ("--member", "slim", *options)
    results: list[StageResult] = []
    arguments = workspace.command("train", *options)[3:]
    first = run_preloaded(
        "pipelines", arguments, ROOT, os.environ, meanwhile=lambda _: results.append(workspace.run("train", *options))
    )
    results.append(StageResult(*first))
    assert [result.code for result in results] == [0, 0], results
    outputs = [result.out for result in results]
    return outputs, [re.findall(r"train (\w+ fold \d): \w+ [\d.]+ on its held-out rows", output) for output in outputs]


MODELS = [f"slim fold {fold}" for fold in range(3)]


def test_two_processes_train_each_fold_model_once_with_force_too_and_both_end_with_all(finished, untrained) -> None:
    outputs, trained = train_twice(untrained)
    assert sorted(trained[0] + trained[1]) == MODELS and all(trained), outputs  # each had a share
    assert all("slim: 3 folds, mean held-out score" in output for output in outputs)
    before = {path: path.stat().st_mtime_ns for path in untrained.work.glob("members/*/*/fold*/manifest.json")}
    outputs, trained = train_twice(untrained, "--force")
    # One that the first process made again before the second began is made again by that, too.
    assert sorted({*trained[0], *trained[1]}) == MODELS and all(trained), outputs
    assert len(trained[0] + trained[1]) < 2 * len(MODELS)
    assert all(path.stat().st_mtime_ns > written for path, written in before.items()) and len(before) == len(MODELS)
    assert untrained.weights() == {path: digest for path, digest in finished.weights().items() if "slim" in path}
    assert not list(untrained.work.glob("members/*/*/again")) and not list(untrained.work.rglob("*.holder.lock"))
