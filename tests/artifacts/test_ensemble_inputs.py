"""A blend depends on the predictions and on the folds that their hyperparameters were chosen on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from world import params

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    fold_views_path,
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
SETTINGS = params("prepare.folds=3 predict.views=[identity]")


def write_model(work: Path, settings: Params, name: str, fold: int, tuned_folds: tuple[int, ...] = ()) -> None:
    """Write the files of a fold model and its predictions, like `make train predict`."""
    manifest = fold_model_path(work, name, fold)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.with_name("weights.npz").write_bytes(f"{name} {fold}".encode())
    member = replace(settings.members[name], tuned_folds=tuned_folds)
    depends = fold_model_dependencies(work, PREPARED, settings, member, fold)
    write_manifest(manifest, depends, [manifest.with_name("weights.npz")], {}, {})
    views = fold_views_path(work, name, fold)
    files = [views.with_name("oof.npz"), views.with_name("test.npz")]
    for file, rows in zip(files, (INDEX["fold"] == fold, INDEX["part"] == "test"), strict=True):
        ids = INDEX.loc[rows, "id"].to_numpy(str)
        ViewPredictions(ids, ("identity",), np.full((len(ids), 1, 2), 0.5, np.float16)).save(file)
    write_manifest(views, views_dependencies(work, PREPARED, settings, name, fold), files, {}, {})


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in SETTINGS.members:
        for fold in range(FOLDS):
            write_model(tmp_path, SETTINGS, name, fold)
    return tmp_path


def tuned_folds(work: Path, settings: Params) -> tuple[int, ...]:
    return load_predictions(work, settings, PREPARED, prediction_sources(work, settings, PREPARED, False)).tuned_folds


def test_tuned_folds_are_those_of_the_models_not_of_the_current_parameters(work: Path) -> None:
    assert tuned_folds(work, SETTINGS) == ()
    write_model(work, SETTINGS, "cnn", 1, tuned_folds=(2,))
    write_model(work, SETTINGS, "mobilenet", 0, tuned_folds=(0,))
    for changes in ("tune.trials=0", "tune.trials=9 tune.folds=[0,1]"):
        assert tuned_folds(work, params(f"prepare.folds=3 predict.views=[identity] {changes}")) == (0, 2)


def test_the_same_predictions_with_other_tuned_folds_change_the_blend_digest(work: Path) -> None:
    before = digest_of(prediction_sources(work, SETTINGS, PREPARED, False))
    write_model(work, SETTINGS, "cnn", 1)
    assert digest_of(prediction_sources(work, SETTINGS, PREPARED, False)) == before
    write_model(work, SETTINGS, "cnn", 1, tuned_folds=(2,))
    assert digest_of(prediction_sources(work, SETTINGS, PREPARED, False)) != before


def test_the_tuned_folds_are_those_of_the_model_that_predicted(work: Path) -> None:
    write_model(work, SETTINGS, "cnn", 1, tuned_folds=(2,))
    manifest = fold_model_path(
        work, "cnn", 1
    )  # trained again without tuning, but its predictions are still the old ones
    untuned = fold_model_dependencies(work, PREPARED, SETTINGS, SETTINGS.members["cnn"], 1)
    write_manifest(manifest, untuned, [manifest.with_name("weights.npz")], {}, {})
    assert tuned_folds(work, SETTINGS) == (2,)


def test_predictions_without_tuned_folds_are_an_error(work: Path) -> None:
    views = fold_views_path(work, "cnn", 1)
    depends = views_dependencies(work, PREPARED, SETTINGS, "cnn", 1)
    del depends["tuned_folds"]
    write_manifest(views, depends, [views.with_name("oof.npz"), views.with_name("test.npz")], {}, {})
    with pytest.raises(UserError, match=r"predictions of cnn fold 1 are of other data, or of an earlier version"):
        prediction_sources(work, SETTINGS, PREPARED, False)
