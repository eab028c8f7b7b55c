"""A changed parameter repeats the results that depend on it, and no others."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from builders import ROOT, params, run_of

from competition.config.digests import digest_of
from competition.config.params import Member, Params
from competition.config.params_file import load_params, parse_overrides
from competition.config.plugins import NO_PLUGINS, activate
from competition.files.manifest import write_json, write_manifest
from competition.prepare.adapter_types import Competition
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import fold_manifest_path, fold_model, fold_views, teacher_models
from competition.workspace.runs import Run
from competition.workspace.studies import (
    member_with_tuned_values,
    study_differences,
    tuning_dependencies,
    tuning_result_path,
)
from competition.workspace.workspace import Workspace

DIGITS = Competition("digits", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1"))
PREPARED = Prepared(Path("data"), DIGITS, pd.DataFrame(), "d" * 64)


def digests(work: Path, overrides: str = "", prepared: Prepared = PREPARED) -> dict[str, str]:
    settings = params(overrides)
    depends = {
        "fold model": fold_model(run_of(work, prepared, settings, "cnn"), 0).depends,
        "views": views_of_equal_weights(work, prepared, settings),
        "study": tuning_dependencies(Workspace(Path(), settings, loaded=prepared), "cnn"),
    }
    return {name: digest_of(value) for name, value in depends.items()}


def views_of_equal_weights(work: Path, prepared: Prepared, settings: Params) -> dict[str, object]:
    """What the views of a fold model depend on, if its weights are those of the run of the default parameters."""
    run = run_of(work, prepared, settings, "cnn")
    return fold_views(replace(run, folder=run_of(work, PREPARED, params(), "cnn").folder), settings, 0).depends


@pytest.mark.parametrize(
    ("change", "repeated"),
    [
        ("train.epochs=3", {"fold model", "study"}),
        ("members.cnn.alpha=0.75", {"fold model", "study"}),
        ("members.cnn.train.dropout=0.1", {"fold model", "study"}),
        ("prepare.fit=crop", {"fold model", "study", "views"}),
        ("predict.views=[identity]", {"views"}),
        ("tune.trials=9", {"study"}),
        ("tune.seed=9", {"study"}),
        ("members.small.alpha=1.0", set()),
        ("device.retries=1", set()),
        ("train.seed=8", {"fold model", "study"}),
        ("members.cnn.external=[x] prepare.external.x=folder", {"fold model", "study"}),
        ("members.cnn.teacher=[small]", {"fold model", "study"}),
        ("members.cnn.tuned_folds=[1]", {"fold model", "views", "study"}),
        ("predict.batch=7", set()),
        ("blend.members=[cnn] blend.name=mine", set()),
        ("members.small.seeds=3", set()),
        ("members.cnn.seeds=3", set()),  # the first of its runs is the same
        ("policy.rounds=3", set()),
        ("blend.rounds=3 blend.methods=[best]", set()),
        ("decision.rules=[argmax]", set()),
        ("honest.seed=3", set()),
        ("device.logical_devices=2", set()),
    ],
)
def test_each_parameter_repeats_the_results_that_depend_on_it(tmp_path: Path, change: str, repeated: set[str]) -> None:
    before, after = digests(tmp_path), digests(tmp_path, change)
    assert {name for name in before if before[name] != after[name]} == repeated


def test_a_comment_in_the_file_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("# another comment\n" + (ROOT / "params.yaml").read_text().replace("  #", "    # "))
    assert digest_of(load_params(path)) == digest_of(params())


def test_predictions_depend_on_the_weights_and_not_on_how_they_were_trained(tmp_path: Path) -> None:
    previous = {digests(tmp_path)["views"]}
    manifest = fold_manifest_path(run_of(tmp_path, PREPARED, params(), "cnn"), 0)
    for content in (b"one", b"two"):
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.with_name("weights.npz").write_bytes(content)
        write_manifest(manifest, {}, [manifest.with_name("weights.npz")], {}, {})
        digest = digests(tmp_path)["views"]
        assert digest not in previous
        previous.add(digest)


def test_pretrained_weights_are_identified_by_content_not_by_name(tmp_path: Path) -> None:
    weights = tmp_path / "w.weights.h5"
    weights.write_bytes(b"one")
    first = digests(tmp_path, f"members.cnn.weights={weights}")
    weights.write_bytes(b"two")
    assert digests(tmp_path, f"members.cnn.weights={weights}")["fold model"] != first["fold model"]


def finish_study(work: Path, settings: Params, values: dict[str, float], folds: list[int], name: str = "cnn") -> None:
    """Write the files of a finished study, like `make tune`."""
    depends = tuning_dependencies(Workspace(Path(), settings, loaded=PREPARED), name)
    best = tuning_result_path(work, name, depends)
    own = {"learning_rate": 0.004, "weight_decay": 0.05}
    own_values = {key: own[key] for key in values}
    write_json(best, {"values": values, "own_values": own_values, "folds": folds, "front": [], "tried": {}})
    finished = f"{len(list((work / 'tune' / name).iterdir())):03}"
    write_manifest(best.with_name("manifest.json"), depends, [best], {"finished": finished}, {})


def tuned(work: Path, settings: Params) -> tuple[Member, dict[str, str]]:
    return member_with_tuned_values(Workspace(work, settings, loaded=PREPARED), "cnn")


def test_tuned_values_are_used_only_if_their_study_is_finished_and_intact(tmp_path: Path) -> None:
    best = tuning_result_path(tmp_path, "cnn", tuning_dependencies(Workspace(Path(), params(), loaded=PREPARED), "cnn"))
    assert tuned(tmp_path, params()) == (params().members["cnn"], {})
    write_json(best, {"values": {"learning_rate": 0.25}, "folds": [0]})
    assert tuned(tmp_path, params())[1] == {}  # no manifest: unfinished
    finish_study(tmp_path, params(), {"learning_rate": 0.25}, [0])
    member, origins = tuned(tmp_path, params())
    assert member.train.learning_rate == 0.25 and origins == {"learning_rate": "0.25 (tuned)"}
    best.write_text("{}")
    assert tuned(tmp_path, params())[1] == {}


@pytest.mark.parametrize(
    ("change", "used"),
    [
        ("tune.trials=7 tune.seed=9 tune.folds=[2,3]", True),
        ("tune.search.learning_rate.high=0.5", True),
        ("train.learning_rate=0.125", False),  # a searched value, but the study's first trial had another one
        ("train.learning_rate=0.25 members.cnn.train.weight_decay=0.5", True),  # the result was adopted
        ("members.small.alpha=1.0", True),
        ("members.cnn.architecture=MobileNetV2", False),
        ("members.cnn.image_size=48", False),
        ("train.epochs=3", False),
        ("members.cnn.train.dropout=0.1", False),
        ("prepare.fit=crop", False),
    ],
)
def test_tuned_values_are_used_only_for_the_member_and_data_they_were_tuned_with(
    tmp_path: Path, change: str, used: bool
) -> None:
    finish_study(tmp_path, params("tune.trials=9"), {"learning_rate": 0.25, "weight_decay": 0.5}, [1])
    member, _ = tuned(tmp_path, params(change))
    assert (member.train.weight_decay == 0.5) == used == (member.tuned_folds == (1,))
    assert bool(study_differences(Workspace(tmp_path, params(change), loaded=PREPARED), "cnn")) != used


def test_a_fold_model_records_the_folds_that_it_and_its_teachers_were_tuned_on(tmp_path: Path) -> None:
    overrides = "members.small.teacher=[cnn] members.small.tuned_folds=[4]"
    settings = params(overrides)
    finish_study(tmp_path, settings, {"learning_rate": 0.25}, [0, 2])
    assert fold_model(run_of(tmp_path, PREPARED, settings, "cnn"), 1).depends["tuned_folds"] == [0, 2]
    student = run_of(tmp_path, PREPARED, settings, "small")
    assert fold_model(student, 1).depends["tuned_folds"] == [0, 2, 4]
    assert fold_views(student, settings, 1).depends["tuned_folds"] == [0, 2, 4]


def train(run: Run, fold: int | tuple[int, int], depends: dict[str, object], weights: bytes) -> None:
    """Write the files of a fold model that other results depend on, like `make train`."""
    manifest = fold_manifest_path(run, fold)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.with_name("weights.npz").write_bytes(weights)
    write_manifest(manifest, depends, [manifest.with_name("weights.npz")], {}, {})


def student_digests(work: Path, scheme: str) -> list[str]:
    """Digest of what each fold model of a student of cnn depends on."""
    settings = params(f"prepare.folds=3 members.small.teacher=[cnn] members.small.teacher_scheme={scheme}")
    student = run_of(work, PREPARED, settings, "small")
    return [digest_of(fold_model(student, fold).depends) for fold in range(3)]


def test_a_student_depends_on_exactly_the_teacher_models_it_learns_from(tmp_path: Path) -> None:
    models: list[int | tuple[int, int]] = [0, 1, 2, (0, 1), (0, 2), (1, 2)]
    teacher = run_of(tmp_path, PREPARED, params("prepare.folds=3"), "cnn")
    for model in models:
        train(teacher, model, {}, b"one")
    same_fold_digests, nested_digests = student_digests(tmp_path, "same_fold"), student_digests(tmp_path, "nested")
    for model in models:
        train(teacher, model, {}, b"other")
        new_same_fold_digests, new_nested_digests = (
            student_digests(tmp_path, "same_fold"),
            student_digests(tmp_path, "nested"),
        )
        changed = {fold for fold in range(3) if new_same_fold_digests[fold] != same_fold_digests[fold]}
        changed_nested = {fold for fold in range(3) if new_nested_digests[fold] != nested_digests[fold]}
        assert (changed, changed_nested) == (({model}, set()) if isinstance(model, int) else (set(), set(model)))
        same_fold_digests, nested_digests = new_same_fold_digests, new_nested_digests


@pytest.mark.parametrize("scheme", ["same_fold", "nested"])
def test_no_teacher_of_a_fold_model_is_trained_on_its_held_out_fold(scheme: str) -> None:
    student = params(f"members.small.teacher=[cnn] members.small.teacher_scheme={scheme}").members["small"]
    for fold in range(5):
        models = teacher_models(student, 5, fold)
        assert all(fold == model or fold in model for model in models)  # type: ignore[operator]
        assert len(models) == (1 if scheme == "same_fold" else 4)
    assert teacher_models(student, 5, (1, 3)) == [(1, 3)]


CODE = """
MODELS = {"mine": lambda image_size, classes: 1}
AUGMENTATIONS = {"grain": lambda image, strength, rng: 2}
VIEWS = {"half": lambda images: 3}
METRICS = {"own": lambda labels, probs: 4}
"""


@pytest.mark.parametrize(
    ("old", "new", "sets", "repeated"),
    [
        ("1}", "5}", "", {"fold model", "study"}),
        ("2}", "5}", "", {"fold model", "study"}),
        ("3}", "5}", "", {"views"}),
        ("4}", "5}", "", {"study"}),  # it scores the trials
        ("4}", "5}", "train.patience=2", {"study", "fold model"}),  # it chooses the epoch
        ("\nVIEWS", "\n\n# the views\nVIEWS", "", set()),
    ],
)
def test_a_changed_plugin_repeats_only_the_results_that_use_it(
    tmp_path: Path, old: str, new: str, sets: str, repeated: set[str]
) -> None:
    assert CODE.count(old) == 1
    names = "competition.metric=own members.cnn.architecture=mine train.augment='{grain: 1.0}' predict.views='[identity, half+flip_lr]'"
    (tmp_path / "recipe.yaml").write_text(f"extends: {ROOT}/params.yaml\nplugins: mine.py\n")
    prepared = replace(PREPARED, competition=replace(DIGITS, metric="own"))

    def digests_with(code: str) -> dict[str, str]:
        (tmp_path / "mine.py").write_text(code)
        settings = load_params(tmp_path / "recipe.yaml", parse_overrides(f"{names} {sets}"))
        depends = {
            "fold model": fold_model(run_of(tmp_path, prepared, settings, "cnn"), 0).depends,
            "views": fold_views(run, settings, 0).depends,
            "study": tuning_dependencies(Workspace(Path(), settings, loaded=prepared), "cnn"),
        }
        return {name: digest_of(value) for name, value in depends.items()}

    run = run_of(tmp_path, PREPARED, params(), "cnn")  # the same weights in all cases
    try:
        before, after = digests_with(CODE), digests_with(CODE.replace(old, new))
    finally:
        activate(NO_PLUGINS)
    assert {name for name in before if before[name] != after[name]} == repeated
