"""Long: a study of 30 trials on digits costs half and loses nothing."""

import json

import numpy as np
import pandas as pd
import pytest
from builders import ROOT
from stages import Workspace

from competition.ensemble.predictions import ViewPredictions

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: digits}}
members:
  cnn: {{architecture: cnn, image_size: 32, alpha: 0.5, weights: none}}
tune:
  trials: 30
  members: [cnn]
  search:
    learning_rate: {{low: 1.0e-4, high: 0.1, log: true}}
    weight_decay: {{low: 1.0e-3, high: 0.3, log: true}}
    label_smoothing: {{low: 0.0, high: 0.2}}
    rotate: {{low: 0.0, high: 30.0}}
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("digits")
    (folder / "params.yaml").write_text(PARAMS)
    workspace = Workspace(folder)
    workspace.do_in_one_process("download", "prepare")
    return workspace


def best_of(workspace: Workspace) -> dict:
    files = workspace.work.glob("tune/cnn/*/best.json")
    return json.loads(max(files, key=lambda path: path.stat().st_mtime).read_text())


def errors_of_honest_rows(workspace: Workspace, sets: str) -> np.ndarray:
    """(n,) bool: which rows of folds 3 and 4, which chose nothing, the fold models get wrong."""
    before = set(workspace.work.glob("members/cnn/*"))
    workspace.do("train", "--fold", "3,4", sets=sets)
    (run,) = set(workspace.work.glob("members/cnn/*")) - before
    index = pd.read_csv(workspace.work / "data" / "index.csv", dtype={"id": str}).set_index("id")
    wrong = []
    for fold in (3, 4):
        predictions = ViewPredictions.load(run / f"fold{fold}" / "oof.npz")
        labels = index.loc[predictions.ids, "label"].to_numpy()
        wrong.append(predictions.view("identity").argmax(1) != labels)
    return np.concatenate(wrong)


def test_thirty_trials_cost_half_and_lose_nothing(digits: Workspace) -> None:
    print(digits.do("tune"))
    best = best_of(digits)
    assert best["trials"] == 30 and best["mean_share"] <= 0.5
    tuned = errors_of_honest_rows(digits, "")
    (digits.work / "tune").rename(digits.work / "hidden")
    untuned = errors_of_honest_rows(digits, "tune.trials=0")
    (digits.work / "hidden").rename(digits.work / "tune")
    difference = untuned.astype(int) - tuned.astype(int)  # positive: tuning helps
    error = difference.std() / len(difference) ** 0.5
    print(f"errors: own {untuned.sum()}, tuned {tuned.sum()} of {len(tuned)}; {difference.mean():+.4f} +- {error:.4f}")
    assert difference.mean() >= -2 * max(error, 1 / len(difference))
