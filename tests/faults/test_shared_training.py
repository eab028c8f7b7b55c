"""Several `make train` in one work folder share its fold models."""

import os
import re

import pytest
from builders import ROOT
from preloaded import run_preloaded
from stages import StageResult

pytestmark = pytest.mark.timeout(600)


def test_two_processes_train_each_fold_model_once_and_both_end_with_all(finished, untrained) -> None:
    results: list[StageResult] = []
    arguments = untrained.command("train")[3:]
    first = run_preloaded(
        "pipelines", arguments, ROOT, os.environ, meanwhile=lambda _: results.append(untrained.run("train"))
    )
    results.append(StageResult(*first))
    outputs = [result.out for result in results]
    assert [result.code for result in results] == [0, 0], results
    trained = [re.findall(r"train (\w+ fold \d): \w+ [\d.]+ on its held-out rows", output) for output in outputs]
    assert sorted(trained[0] + trained[1]) == [f"{name} fold {fold}" for name in ("slim", "wide") for fold in range(3)]
    assert all(trained), outputs  # each had a share
    assert all("wide: 3 folds, mean held-out score" in output for output in outputs)
    assert untrained.weights() == finished.weights()
