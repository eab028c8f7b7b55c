from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import params, run_of, write_weights
from two_classes import FOLDS, INDEX, PREPARED

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.config.params import Params
from competition.ensemble.stored_predictions import ViewPredictions
from competition.files.manifest import write_manifest
from competition.workspace import dependencies
from competition.workspace.ensemble_inputs import EnsembleInputs, load_predictions, prediction_sources
from competition.workspace.features_and_soft_labels import load_soft_labels
from competition.workspace.runs import Run, runs_of
from competition.workspace.workspace import Workspace


def settings_with(changes: str = "") -> Params:
    return params(f"prepare.folds=3 predict.views=[identity] {changes}")


SETTINGS = settings_with()


def save_rows(path: Path, is_saved: pd.Series, probability: float) -> None:
    """Write predictions of some rows of the index, in reverse order, with `probability` for the first class."""
    ids = INDEX.loc[is_saved, "id"].to_numpy(str)[::-1]
    probs = np.tile(np.array([probability, 1 - probability], np.float16), (len(ids), 1, 1))
    ViewPredictions(ids, ("identity",), probs).save(path)


def write_model(work: Path, settings: Params, name: str, fold: int, probability: float = 0.5, seed: int = 0) -> None:
    """Write the files of a fold model and its predictions, like `make train predict`."""
    run = run_of(work, PREPARED, settings, name, seed=seed)
    depends = dependencies.fold_model(run, fold).depends
    write_weights(run.folder / f"fold{fold}", f"{run.digest} {fold}".encode(), depends)
    views = dependencies.fold_views(run, settings, fold)
    files = [views.manifest.with_name("oof.npz"), views.manifest.with_name("test.npz")]
    for file, is_predicted in zip(files, (INDEX["fold"] == fold, INDEX["part"] == "test"), strict=True):
        save_rows(file, is_predicted, probability)
    write_manifest(views.manifest, views.depends, files, {}, {})


def write_member(work: Path, settings: Params, name: str, probability: float = 0.5, seed: int = 0) -> None:
    for fold in range(FOLDS):
        write_model(work, settings, name, fold, probability, seed)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in SETTINGS.members:
        write_member(tmp_path, SETTINGS, name)
    return tmp_path


def workspace_of(work: Path, settings: Params) -> Workspace:
    return Workspace(work, settings, loaded=PREPARED)


def load(work: Path, settings: Params) -> EnsembleInputs:
    workspace = workspace_of(work, settings)
    return load_predictions(workspace, prediction_sources(workspace, False))


def sources_digest(work: Path, settings: Params) -> str:
    return digest_of(prediction_sources(workspace_of(work, settings), False))


def test_the_same_predictions_with_other_tuned_folds_change_the_blend_digest(work: Path) -> None:
    before = sources_digest(work, SETTINGS)
    write_model(work, SETTINGS, "cnn", 1)
    assert sources_digest(work, SETTINGS) == before
    tuned = settings_with("members.cnn.tuned_folds=[2]")
    write_member(work, tuned, "cnn")
    assert sources_digest(work, tuned) != before


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
    assert all(np.array_equal(member.ids, inputs.ids) for member in inputs.oof.values())  # joined by id
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


IS_TRAIN = INDEX["part"] == "train"
MODELS = {0: 0.1, 1: 0.2, 2: 0.3}  # fold of a teacher model -> the probability that identifies it in these tests


def student_of(teachers: str = "[cnn]", sets: str = "") -> Params:
    return params(f"prepare.folds=3 members.small.teacher='{teachers}' {sets}")


def save_soft_labels(teacher: Run, fold: int, probability: float) -> None:
    path = dependencies.soft_labels(teacher, fold).manifest.with_name("soft.npz")
    save_rows(path, IS_TRAIN & (INDEX["fold"] != fold), probability)


@pytest.fixture
def taught(tmp_path: Path) -> Path:
    """The predictions of the teacher cnn."""
    teacher = run_of(tmp_path, PREPARED, params("prepare.folds=3"), "cnn")
    for fold in range(FOLDS):
        save_soft_labels(teacher, fold, MODELS[fold])
    return tmp_path


def label_by_fold(student: Run, fold: int) -> dict[int, float]:
    """Fold of the rows -> the soft label of their first class."""
    table = load_soft_labels(student, fold)
    fold_of = dict(zip(INDEX["id"], INDEX["fold"], strict=True))
    labels = {fold_of[name]: round(float(p), 2) for name, p in zip(table.ids, table.probs[:, 0, 0], strict=True)}
    assert len(table.ids) == 4 * len(labels)
    return labels


@pytest.mark.parametrize("fold", range(FOLDS))
def test_a_label_is_from_the_model_of_the_same_fold(taught, fold):
    others = [other for other in range(FOLDS) if other != fold]
    assert label_by_fold(run_of(taught, PREPARED, student_of(), "small"), fold) == dict.fromkeys(others, MODELS[fold])


@pytest.mark.parametrize(("seeds", "label"), [(1, (0.2 + 0.8) / 2), (2, (0.2 + (0.8 + 0.4) / 2) / 2)])
def test_several_teachers_are_averaged_by_id_and_one_with_two_seeds_counts_as_one(taught, seeds, label) -> None:
    wide = f"members.wide='{{architecture: cnn, image_size: 32, alpha: 1.0, weights: none, seeds: {seeds}}}'"
    student = run_of(taught, PREPARED, student_of("[cnn, wide]", wide), "small")
    for teacher, probability in zip(student.teachers["wide"], (0.8, 0.4)):
        save_soft_labels(teacher, 1, probability)
    assert label_by_fold(student, 1) == {0: label, 2: label}
