"""Several `make train` in one work folder share its fold models."""

import re
import subprocess

import pytest
from builders import ROOT
from stages import Workspace

pytestmark = pytest.mark.timeout(600)


def started(workspace: Workspace) -> subprocess.Popen[str]:
    command = workspace.command("train")
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_processes_train_each_fold_model_once_and_both_end_with_all(
    finished: Workspace, untrained: Workspace
) -> None:
    processes = [started(untrained), started(untrained)]
    outputs = [process.communicate(timeout=500)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    trained = [re.findall(r"train (\w+ fold \d): \w+ [\d.]+ on its held-out rows", output) for output in outputs]
    assert sorted(trained[0] + trained[1]) == [f"{name} fold {fold}" for name in ("slim", "wide") for fold in range(3)]
    assert all(trained), outputs  # each had a share
    assert all("wide: 3 folds, mean held-out score" in output for output in outputs)
    assert untrained.weights() == finished.weights()
