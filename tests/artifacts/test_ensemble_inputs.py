"""What a blend depends on: predictions, and on which rows the hyperparameters behind them were chosen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from world import params

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_manifest,
    fold_views_manifest,
    views_dependencies,
)
from competition.artifacts.ensemble_inputs import load_predictions, prediction_sources
from competition.artifacts.manifest import digest_of, write_manifest
from competition.config.errors import UserError
from competition.config.params import Params
from competition.data.competition import Competition
from competition.data.prepared import Prepared
from competition.ensemble.predictions import ViewPredictions

FOLDS, ROWS = 3, 12
INDEX = pd.DataFrame(
    {
        "id": [f"i{n:02}" for n in range(ROWS)] + ["t0"],
        "part": ["train"] * ROWS + ["test"],
        "label": [*(np.arange(ROWS) % 2), -1],
        "fold": [*(np.arange(ROWS) % FOLDS), -1],
    }
)
PREPARED = Prepared(
    Path("data"), Competition("two", "", ("a", "b"), "accuracy", "label", "id", ("label",), ("0", "1")), INDEX, "d" * 64
)
FOUND = params("prepare.folds=3 predict.views=[identity]")


def leave_model(work: Path, found: Params, name: str, fold: int, tuned_folds: tuple[int, ...] = ()) -> None:
    """A fold model and its predictions as `make train predict` leaves them."""
    manifest = fold_model_manifest(work, name, fold)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.with_name("weights.npz").write_bytes(f"{name} {fold}".encode())
    member = replace(found.members[name], tuned_folds=tuned_folds)
    depends = fold_model_dependencies(work, PREPARED, found, member, fold)
    write_manifest(manifest, depends, [manifest.with_name("weights.npz")], {}, {})
    views = fold_views_manifest(work, name, fold)
    files = [views.with_name("oof.npz"), views.with_name("test.npz")]
    for file, rows in zip(files, (INDEX["fold"] == fold, INDEX["part"] == "test"), strict=True):
        ids = INDEX.loc[rows, "id"].to_numpy(str)
        ViewPredictions(ids, ("identity",), np.full((len(ids), 1, 2), 0.5, np.float16)).save(file)
    write_manifest(views, views_dependencies(work, PREPARED, found, name, fold), files, {}, {})


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in FOUND.members:
        for fold in range(FOLDS):
            leave_model(tmp_path, FOUND, name, fold)
    return tmp_path


def tuned_folds(work: Path, found: Params) -> tuple[int, ...]:
    return load_predictions(work, found, PREPARED, prediction_sources(work, found, PREPARED, False)).tuned_folds


def test_tuned_folds_are_those_of_the_models_whatever_params_say_now(work: Path) -> None:
    assert tuned_folds(work, FOUND) == ()
    leave_model(work, FOUND, "cnn", 1, tuned_folds=(2,))
    leave_model(work, FOUND, "mobilenet", 0, tuned_folds=(0,))
    for now in ("tune.trials=0", "tune.trials=9 tune.folds=[0,1]"):
        assert tuned_folds(work, params(f"prepare.folds=3 predict.views=[identity] {now}")) == (0, 2)


def test_the_same_predictions_with_tuned_values_make_another_blend(work: Path) -> None:
    before = digest_of(prediction_sources(work, FOUND, PREPARED, False))
    leave_model(work, FOUND, "cnn", 1)
    assert digest_of(prediction_sources(work, FOUND, PREPARED, False)) == before
    leave_model(work, FOUND, "cnn", 1, tuned_folds=(2,))
    assert digest_of(prediction_sources(work, FOUND, PREPARED, False)) != before


def test_a_model_trained_again_does_not_hide_what_the_predictions_were_tuned_on(work: Path) -> None:
    leave_model(work, FOUND, "cnn", 1, tuned_folds=(2,))
    manifest = fold_model_manifest(work, "cnn", 1)  # trained again without tuning, but not predicted yet
    untuned = fold_model_dependencies(work, PREPARED, FOUND, FOUND.members["cnn"], 1)
    write_manifest(manifest, untuned, [manifest.with_name("weights.npz")], {}, {})
    assert tuned_folds(work, FOUND) == (2,)


def test_predictions_that_do_not_say_what_they_were_tuned_on_are_refused(work: Path) -> None:
    views = fold_views_manifest(work, "cnn", 1)
    depends = views_dependencies(work, PREPARED, FOUND, "cnn", 1)
    del depends["tuned_folds"]
    write_manifest(views, depends, [views.with_name("oof.npz"), views.with_name("test.npz")], {}, {})
    with pytest.raises(UserError, match=r"predictions of cnn fold 1 are of other data, or of an earlier version"):
        prediction_sources(work, FOUND, PREPARED, False)
