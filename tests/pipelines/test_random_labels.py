"""On random labels no member and no blend scores above chance: every kind of member through every stage."""

import json
import os
from pathlib import Path

import pytest
from builders import ROOT
from preloaded import run_preloaded

pytestmark = pytest.mark.long
KINDS = ("plain", "student", "stopped", "tuned")
ROWS, FOLDS = 300, 5


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The result of `benchmarks.random_labels` for one seed."""
    file: Path = tmp_path_factory.mktemp("random") / "result.json"
    options = ["--seeds=1", "--first-seed=0", f"--rows={ROWS}", f"--folds={FOLDS}", "--epochs=16", "--trials=2"]
    options += [f"--json={file}", "--kinds", *KINDS]
    _, _, errors = run_preloaded("benchmarks.random_labels", options, ROOT, os.environ)
    assert file.exists(), errors[-2_000:]
    (seed_result,) = json.loads(file.read_text())
    return seed_result


@pytest.mark.parametrize("kind", [*KINDS, "blend"])
def test_the_honest_score_is_chance_within_its_standard_error(result: dict, kind: str) -> None:
    """One seed, so |z| <= 2.5. A teacher trained on the held-out fold gives 13, early stopping on the held-out fold 2.8."""
    assert abs(result["kinds"][kind]["z"]) <= 2.5


def test_rows_that_chose_hyperparameters_are_excluded_from_the_honest_score(result: dict) -> None:
    assert result["tuned_folds"] == [0, 1] and result["honest_rows"] == ROWS * (FOLDS - 2) // FOLDS
