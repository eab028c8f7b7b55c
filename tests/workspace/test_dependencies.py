import os
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROOT, ledger_entry, params, run_of, write_weights
from two_classes import FOLDS, PREPARED, TWO

from competition.config.digests import digest_of, to_plain
from competition.config.errors import UserError
from competition.config.params import REMOVED, Member, Params
from competition.config.params_file import BUDGET_FILE, load_params, parse_overrides, stated_keys
from competition.files.manifest import write_manifest
from competition.prepare.index import COLUMNS
from competition.prepare.prepared import Prepared, load_prepared
from competition.submission import ledger
from competition.workspace import runs
from competition.workspace.dependencies import budget_file_of, fold_manifest_path, fold_model, fold_views
from competition.workspace.runs import honest_scores, runs_of, stored_runs, submissions_by_run, write_run_file
from competition.workspace.studies import tuning_dependencies
from competition.workspace.workspace import Workspace


def digests(work: Path, settings: Params, prepared: Prepared = PREPARED) -> dict[str, str]:
    run = run_of(work, prepared, settings, "cnn")
    of_equal_weights = replace(run, folder=work / "members" / "cnn" / "0123456789ab")
    depends = {
        "fold model": fold_model(run, 0).depends,
        "views": fold_views(of_equal_weights, settings, 0).depends,
        "study": tuning_dependencies(Workspace(Path(), settings, loaded=prepared), "cnn"),
    }
    return {name: digest_of(value) for name, value in depends.items()}


def differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


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
def test_each_parameter_repeats_the_results_that_depend_on_it(tmp_path: Path, change, repeated: set[str]) -> None:
    assert differing(digests(tmp_path, params()), digests(tmp_path, params(change))) == repeated


def test_predictions_depend_on_the_weights_and_not_on_how_they_were_trained(tmp_path: Path) -> None:
    run, found = run_of(tmp_path, PREPARED, params(), "cnn"), list[str]()
    for content in (b"", b"one", b"two"):
        if content:
            write_weights(run.folder / "fold0", content)
        found.append(digest_of(fold_views(run, params(), 0).depends))
    assert len(set(found)) == 3


def test_pretrained_weights_are_identified_by_content_not_by_name(tmp_path: Path) -> None:
    weights = tmp_path / "w.weights.h5"
    weights.write_bytes(b"one")
    first = digests(tmp_path, params(f"members.cnn.weights={weights}"))
    weights.write_bytes(b"two")
    assert digests(tmp_path, params(f"members.cnn.weights={weights}"))["fold model"] != first["fold model"]


def test_a_student_depends_on_exactly_the_teacher_models_it_learns_from(tmp_path) -> None:
    settings = params("prepare.folds=3 members.small.teacher=[cnn]")
    student, teacher = (run_of(tmp_path, PREPARED, settings, name) for name in ("small", "cnn"))
    digests_of_folds = lambda: [digest_of(fold_model(student, fold).depends) for fold in range(FOLDS)]  # noqa: E731
    for weights in (b"one", b"other"):
        for model in range(FOLDS):
            before = digests_of_folds()
            write_weights(fold_manifest_path(teacher, model).parent, weights)
            changed = [before[fold] != digest for fold, digest in enumerate(digests_of_folds())]
            assert changed == [fold == model for fold in range(FOLDS)]


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
    prepared = replace(PREPARED, competition=replace(TWO, metric="own"))

    def digests_with(code) -> dict[str, str]:
        (tmp_path / "mine.py").write_text(code)
        return digests(tmp_path, load_params(tmp_path / "recipe.yaml", parse_overrides(f"{names} {sets}")), prepared)

    assert differing(digests_with(CODE), digests_with(CODE.replace(old, new))) == repeated


def digest(work: Path, overrides=""):
    return run_of(work, PREPARED, params(overrides), "cnn").digest


def test_a_fold_model_trained_with_the_default_of_a_removed_parameter_stays_current(tmp_path, monkeypatch):
    run = run_of(tmp_path, PREPARED, params(), "cnn")
    depends = to_plain(run.depends)
    depends["member"]["train"]["removed"] = 3
    manifest = tmp_path / "members" / "cnn" / digest_of(depends)[:12] / "fold0" / "manifest.json"
    write_manifest(manifest, {**depends, "fold": 0, "teacher_weights": {}}, [], {}, {})
    assert not fold_model(run, 0).is_current
    monkeypatch.setitem(REMOVED["train"], "removed", 3)
    assert fold_model(run_of(tmp_path, PREPARED, params(), "cnn"), 0).is_current
    (stored,) = stored_runs(tmp_path)
    assert (stored.member, stored.digest) == (run.member, digest_of(depends))
    with pytest.raises(UserError, match=r"SET train.removed: this parameter was removed; remove the line"):
        params("train.removed=3")


def test_another_version_of_training_and_another_run_of_a_teacher_start_another_run(tmp_path, monkeypatch):
    student = "members.cnn.teacher=[small]"
    before, with_teacher = digest(tmp_path), digest(tmp_path, student)
    assert digest(tmp_path, f"{student} members.small.alpha=1.0") != with_teacher
    monkeypatch.setattr(runs, "TRAINING", runs.TRAINING + 1)
    assert digest(tmp_path) != before


def test_each_seed_is_the_run_that_the_member_with_this_seed_would_be(tmp_path: Path) -> None:
    runs = runs_of(Workspace(tmp_path, params("members.cnn.seeds=3"), loaded=PREPARED), "cnn")
    assert [run.digest for run in runs] == [digest(tmp_path, f"members.cnn.train.seed={seed}") for seed in (7, 8, 9)]
    assert [run.title for run in runs] == ["cnn seed 7", "cnn seed 8", "cnn seed 9"]


def test_an_optional_key_at_its_default_is_not_part_of_the_digest() -> None:
    member = params().members["cnn"]
    assert stated_keys(member).keys() == {"architecture", "image_size", "alpha", "weights", "train"}
    assert stated_keys(replace(member, seeds=2))["seeds"] == 2
    assert Member(**{**stated_keys(member), "train": member.train}) == member


def test_a_stored_run_is_read_from_its_file_or_described_by_its_fold_models(tmp_path: Path) -> None:
    run = run_of(tmp_path, PREPARED, params("train.epochs=3"), "cnn")
    write_run_file(run)
    (stored,) = stored_runs(tmp_path)
    assert (stored.digest, stored.member, stored.folder) == (run.digest, run.member, run.folder)
    manifest = fold_manifest_path(run, 1)
    manifest.parent.mkdir()
    write_manifest(manifest, fold_model(run, 1).depends, [], {}, {})
    for damaged in ("{", None):  # a run that came from a bucket or a kernel has no run.json
        (run.folder / "run.json").unlink() if damaged is None else (run.folder / "run.json").write_text(damaged)
        (stored,) = stored_runs(tmp_path)
        assert (stored.digest, stored.member) == (run.digest, run.member)


def test_the_data_digest_does_not_contain_the_metric_or_the_form_of_the_submission(tmp_path: Path) -> None:
    (tmp_path / "index.csv").write_text(",".join(COLUMNS) + "\n")

    def prepared(competition, metric="") -> Prepared:
        (tmp_path / "competition.json").write_bytes(competition.json_bytes())
        return load_prepared(tmp_path, metric)

    first = prepared(TWO)
    assert prepared(TWO, "accuracy").competition.metric == "accuracy" and first.competition.metric == "macro_f1"
    changes = {"predicts": "probabilities", "prediction_columns": ("a", "b"), "metric": "log_loss", "notes": ("x",)}
    per_class = replace(TWO, **changes)
    assert prepared(per_class).digest == prepared(TWO, "accuracy").digest == first.digest
    assert prepared(replace(TWO, classes=("a", "c"))).digest != first.digest
    several = replace(TWO, target="multi", metric="samples_f1", label_targets=("01", "11"))
    assert prepared(several).digest not in {first.digest, prepared(replace(several, label_targets=("01", "10"))).digest}
    assert prepared(replace(several, list_separator=";", allows_empty_lists=False)).digest == prepared(several).digest
    grades = replace(TWO, target="ordinal", metric="quadratic_kappa")  # are classes
    assert prepared(grades).digest == first.digest


def test_data_need_another_preparation_if_a_parameter_changed_and_not_if_it_did_not_exist(tmp_path, monkeypatch):
    monkeypatch.setattr("competition.prepare.prepared.load_prepared", lambda *_: PREPARED)
    recorded = to_plain(params().prepare)
    del recorded["near_pixels"]
    for prepare in (recorded, recorded | {"folds": 77, "gone": 1}):
        write_manifest(tmp_path / "data" / "manifest.json", {"prepare": prepare}, [], {}, {})
        workspace = Workspace(tmp_path, params())
        assert prepare is not recorded or workspace.prepared.index is PREPARED.index
    with pytest.raises(UserError, match=r"prepare\.folds: 77 -> \d+; prepare\.gone: 1 -> absent\); `make download`"):
        _ = workspace.prepared


def test_the_score_of_a_run_is_that_of_the_current_blend_and_not_of_a_newer_one(tmp_path: Path) -> None:
    for number, (blend, score) in enumerate((("now", 0.8), ("newer", 0.9), ("other", 0.7))):
        path = tmp_path / "blend" / blend / "manifest.json"
        metric = "accuracy" if blend == "other" else "macro_f1"
        result = {"metric": metric, "members": {"cnn": {"score": score, "standard_error": 0.01}}}
        write_manifest(path, {"predictions": {"cnn": {"a1b2": "digest"}}}, [], result, {})
        os.utime(path, (number, number))
    blends = tmp_path / "blend"
    for current, score in ((blends / "now", 0.8), (blends / "other", 0.9), (None, 0.9)):
        assert honest_scores(tmp_path, "macro_f1", current)["a1b2"]["score"] == score


def test_a_run_is_used_by_a_submission_that_another_blend_gave_again(tmp_path: Path) -> None:
    settings = params("competition.name=c")
    cnn, small = (run_of(tmp_path, PREPARED, settings, name) for name in ("cnn", "small"))
    for run in (small, cnn):
        ledger.append(tmp_path / "ledger.jsonl", ledger_entry(runs=(run.label,)))
    used = submissions_by_run(Workspace(tmp_path, settings, loaded=PREPARED), tmp_path, [cnn, small])
    assert [len(used[run.label]) for run in (cnn, small)] == [1, 1]


def test_a_blend_is_of_a_budget_only_if_its_file_names_all_members_that_these_parameters_lack(tmp_path: Path) -> None:
    settings, file = params(), tmp_path / BUDGET_FILE  # cnn and small
    assert budget_file_of(["linear"], tmp_path, settings) is None  # no budget ran
    file.parent.mkdir()
    file.write_text("members: {linear: {}, rbf: {}}\n")
    assert budget_file_of(["linear", "rbf"], tmp_path, settings) == file
    assert budget_file_of(["cnn", "small"], tmp_path, settings) is None
    assert budget_file_of(["linear", "of another file"], tmp_path, settings) is None
