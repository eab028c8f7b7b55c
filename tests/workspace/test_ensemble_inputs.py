"""A blend depends on the predictions and on the folds that their hyperparameters were chosen on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import params, run_of

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.config.params import Params
from competition.ensemble.predictions import ViewPredictions
from competition.files.manifest import write_manifest
from competition.prepare.adapter_types import Competition
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import fold_manifest_path, fold_model, fold_views
from competition.workspace.ensemble_inputs import EnsembleInputs, load_predictions, prediction_sources
from competition.workspace.runs import runs_of
from competition.workspace.workspace import Workspace

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


def write_model(work: Path, settings: Params, name: str, fold: int, probability: float = 0.5, seed: int = 0) -> None:
    """Write the files of a fold model and its predictions, like `make train predict`."""
    run = run_of(work, PREPARED, settings, name, seed=seed)
    manifest = fold_manifest_path(run, fold)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.with_name("weights.npz").write_bytes(f"{run.digest} {fold}".encode())
    write_manifest(manifest, fold_model(run, fold).depends, [manifest.with_name("weights.npz")], {}, {})
    views = fold_views(run, settings, fold).manifest
    files = [views.with_name("oof.npz"), views.with_name("test.npz")]
    for file, rows in zip(files, (INDEX["fold"] == fold, INDEX["part"] == "test"), strict=True):
        ids = INDEX.loc[rows, "id"].to_numpy(str)
        probs = np.tile(np.array([probability, 1 - probability], np.float16), (len(ids), 1, 1))
        ViewPredictions(ids, ("identity",), probs).save(file)
    write_manifest(views, fold_views(run, settings, fold).depends, files, {}, {})


def write_member(work: Path, settings: Params, name: str, probability: float = 0.5, seed: int = 0) -> None:
    for fold in range(FOLDS):
        write_model(work, settings, name, fold, probability, seed)


def settings_with(changes: str) -> Params:
    return params(f"prepare.folds=3 predict.views=[identity] {changes}")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in SETTINGS.members:
        write_member(tmp_path, SETTINGS, name)
    return tmp_path


def load(work: Path, settings: Params) -> EnsembleInputs:
    return load_predictions(workspace_of(work, settings), prediction_sources(workspace_of(work, settings), False))


def workspace_of(work: Path, settings: Params) -> Workspace:
    return Workspace(work, settings, loaded=PREPARED)


def test_the_same_predictions_with_other_tuned_folds_change_the_blend_digest(work: Path) -> None:
    before = digest_of(prediction_sources(workspace_of(work, SETTINGS), False))
    write_model(work, SETTINGS, "cnn", 1)
    assert digest_of(prediction_sources(workspace_of(work, SETTINGS), False)) == before
    tuned = settings_with("members.cnn.tuned_folds=[2]")
    write_member(work, tuned, "cnn")
    assert digest_of(prediction_sources(workspace_of(work, tuned), False)) != before


def test_fold_models_of_other_parameters_are_missing_and_never_mixed_in(work: Path) -> None:
    other = settings_with("members.cnn.train.learning_rate=0.5")
    write_model(work, other, "cnn", 1, probability=0.9)
    with pytest.raises(UserError, match=r"predictions of cnn fold 0, cnn fold 2 are missing; `make train predict`"):
        prediction_sources(workspace_of(work, other), False)
    ours = workspace_of(work, SETTINGS)
    partial = load_predictions(ours, prediction_sources(ours, True))
    assert np.all(partial.oof["cnn"].probs == 0.5) and partial.predicted_folds == (0, 1, 2)


def test_the_seeds_of_a_member_are_averaged_and_count_as_one_member(work: Path) -> None:
    settings = settings_with("members.cnn.seeds=3")
    assert runs_of(workspace_of(work, settings), "cnn")[0].digest == run_of(work, PREPARED, SETTINGS, "cnn").digest
    write_member(work, settings, "cnn", 0.25, seed=1)
    with pytest.raises(UserError, match=r"predictions of cnn seed 9 fold 0"):
        prediction_sources(workspace_of(work, settings), False)
    write_member(work, settings, "cnn", 0.75, seed=2)
    inputs = load(work, settings)
    assert list(inputs.oof) == ["cnn", "small"]
    for predictions in (inputs.oof["cnn"], inputs.test["cnn"]):
        np.testing.assert_allclose(predictions.probs[:, 0, 0], (0.5 + 0.25 + 0.75) / 3, atol=1e-3)


def test_blend_members_selects_members_and_stored_runs_without_their_deletion(work: Path) -> None:
    other = settings_with("members.cnn.train.learning_rate=0.5")
    write_member(work, other, "cnn", 0.75)
    label = run_of(work, PREPARED, other, "cnn").label
    assert list(load(work, settings_with("blend.members=[small]")).oof) == ["small"]
    inputs = load(work, settings_with(f"blend.members='[cnn, {label}]'"))
    assert [inputs.oof[name].probs[0, 0, 0] for name in ("cnn", label)] == [0.5, 0.75]
    with pytest.raises(UserError, match=r"cnn@0000: 0 runs were found, expected one; .*stored runs: .*cnn@"):
        load(work, settings_with("blend.members=['cnn@0000']"))


def test_predictions_of_other_data_are_an_error(work: Path) -> None:
    label = run_of(work, PREPARED, SETTINGS, "cnn").label
    changed = replace(PREPARED, digest="e" * 64)
    with pytest.raises(UserError, match=rf"its run {label} is of other data"):
        prediction_sources(Workspace(work, settings_with(f"blend.members=['{label}']"), loaded=changed), False)
