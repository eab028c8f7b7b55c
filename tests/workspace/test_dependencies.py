"""A changed parameter repeats the results that depend on it, and no others."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from builders import ROOT, params, run_of

from competition.config.digests import digest_of
from competition.config.params import Params
from competition.config.params_file import load_params, parse_overrides
from competition.config.plugins import NO_PLUGINS, activate
from competition.files.manifest import write_manifest
from competition.prepare.adapter_types import Competition
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import fold_manifest_path, fold_model, fold_views, teacher_models
from competition.workspace.runs import Run
from competition.workspace.studies import tuning_dependencies
from competition.workspace.workspace import Workspace

DIGITS = Competition("digits", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1"))
PREPARED = Prepared(Path("data"), DIGITS, pd.DataFrame(), "d" * 64)


def digests(work: Path, settings: Params, prepared: Prepared = PREPARED) -> dict[str, str]:
    depends = {
        "fold model": fold_model(run_of(work, prepared, settings, "cnn"), 0).depends,
        "views": views_of_equal_weights(work, prepared, settings),
        "study": tuning_dependencies(Workspace(Path(), settings, loaded=prepared), "cnn"),
    }
    return {name: digest_of(value) for name, value in depends.items()}


def differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def views_of_equal_weights(work: Path, prepared: Prepared, settings: Params) -> dict[str, object]:
    """What the views of a fold model depend on, if its weights are those of the run of the default parameters."""
    run, folder = run_of(work, prepared, settings, "cnn"), work / "members" / "cnn" / "0123456789ab"
    return fold_views(replace(run, folder=folder), settings, 0).depends


@pytest.mark.parametrize(
    ("change", "repeated"),
    [
        ("train.epochs=3", {"fold model", "study"}),
        ("members.cnn.alpha=0.75", {"fold model", "study"}),
        ("prepare.fit=crop", {"fold model", "study", "views"}),
        ("predict.views=[identity]", {"views"}),
        ("tune.trials=9", {"study"}),
        ("train.seed=8", {"fold model", "study"}),
        ("members.cnn.external=[x] prepare.external.x=folder", {"fold model", "study"}),
        ("members.cnn.teacher=[small]", {"fold model", "study"}),
        ("members.cnn.tuned_folds=[1]", {"fold model", "views", "study"}),
        ("members.cnn.seeds=3", set()),  # the first of its runs is the same
        ("members.small.alpha=1.0 members.small.seeds=3 blend.members=[cnn] blend.name=mine", set()),
        ("device.retries=1 device.logical_devices=2 predict.batch=7", set()),
        ("policy.rounds=3 blend.rounds=3 blend.methods=[best] decision.rules=[argmax] honest.seed=3", set()),
    ],
)
def test_each_parameter_repeats_the_results_that_depend_on_it(tmp_path: Path, change: str, repeated: set[str]) -> None:
    assert differing(digests(tmp_path, params()), digests(tmp_path, params(change))) == repeated


def test_predictions_depend_on_the_weights_and_not_on_how_they_were_trained(tmp_path: Path) -> None:
    run, found = run_of(tmp_path, PREPARED, params(), "cnn"), list[str]()
    for content in (b"", b"one", b"two"):
        if content:
            train(run, 0, {}, content)
        found.append(digest_of(fold_views(run, params(), 0).depends))
    assert len(set(found)) == 3


def test_pretrained_weights_are_identified_by_content_not_by_name(tmp_path: Path) -> None:
    weights = tmp_path / "w.weights.h5"
    weights.write_bytes(b"one")
    first = digests(tmp_path, params(f"members.cnn.weights={weights}"))
    weights.write_bytes(b"two")
    assert digests(tmp_path, params(f"members.cnn.weights={weights}"))["fold model"] != first["fold model"]


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
    before = {scheme: student_digests(tmp_path, scheme) for scheme in ("same_fold", "nested")}
    for model in models:
        train(teacher, model, {}, b"other")
        after = {scheme: student_digests(tmp_path, scheme) for scheme in before}
        changed = [{fold for fold in range(3) if before[s][fold] != after[s][fold]} for s in ("same_fold", "nested")]
        assert changed == ([{model}, set()] if isinstance(model, int) else [set(), set(model)])
        before = after


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
def test_a_changed_plugin_repeats_only_the_results_that_use_it(tmp_path, old, new, sets, repeated):
    assert CODE.count(old) == 1
    names = "competition.metric=own members.cnn.architecture=mine train.augment='{grain: 1.0}' predict.views='[identity, half+flip_lr]'"
    (tmp_path / "recipe.yaml").write_text(f"extends: {ROOT}/params.yaml\nplugins: mine.py\n")
    prepared = replace(PREPARED, competition=replace(DIGITS, metric="own"))

    def digests_with(code: str) -> dict[str, str]:
        (tmp_path / "mine.py").write_text(code)
        return digests(tmp_path, load_params(tmp_path / "recipe.yaml", parse_overrides(f"{names} {sets}")), prepared)

    try:
        assert differing(digests_with(CODE), digests_with(CODE.replace(old, new))) == repeated
    finally:
        activate(NO_PLUGINS)
