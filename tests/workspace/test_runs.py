"""A run has a name of its own for everything that its fold models depend on, and describes itself."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from builders import params, run_of

from competition.config.digests import digest_of, to_plain
from competition.config.errors import UserError
from competition.config.former_keys import REMOVED_FROM_TRAIN
from competition.config.params import Member
from competition.config.params_file import stated_keys
from competition.files.manifest import write_manifest
from competition.prepare.adapter_types import Competition
from competition.prepare.index import COLUMNS
from competition.prepare.prepared import Prepared, load_prepared
from competition.workspace import runs
from competition.workspace.dependencies import fold_manifest_path, fold_model
from competition.workspace.runs import honest_scores, runs_of, stored_runs, write_run_file
from competition.workspace.workspace import Workspace

DIGITS = Competition("digits", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1"))
PREPARED = Prepared(Path("data"), DIGITS, pd.DataFrame(), "d" * 64)


def digest(work: Path, overrides: str = "", prepared: Prepared = PREPARED) -> str:
    return run_of(work, prepared, params(overrides), "cnn").digest


def test_a_fold_model_trained_with_the_default_of_a_removed_parameter_stays_current(tmp_path, monkeypatch):
    run = run_of(tmp_path, PREPARED, params(), "cnn")
    depends = to_plain(run.depends)
    depends["member"]["train"]["removed"] = 3
    manifest = tmp_path / "members" / "cnn" / digest_of(depends)[:12] / "fold0" / "manifest.json"
    write_manifest(manifest, {**depends, "fold": 0, "teacher_weights": {}}, [], {}, {})
    assert not fold_model(run, 0).is_current
    monkeypatch.setitem(REMOVED_FROM_TRAIN, "removed", 3)
    assert fold_model(run_of(tmp_path, PREPARED, params(), "cnn"), 0).is_current
    (stored,) = stored_runs(tmp_path)
    assert (stored.member, stored.digest) == (run.member, digest_of(depends))
    with pytest.raises(UserError, match=r"SET train.removed: this parameter was removed; remove the line"):
        params("train.removed=3")


def test_a_raised_version_of_training_starts_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(tmp_path)
    monkeypatch.setattr(runs, "TRAINING", runs.TRAINING + 1)
    assert digest(tmp_path) != before


def test_each_seed_is_the_run_that_the_member_with_this_seed_would_be(tmp_path: Path) -> None:
    runs = runs_of(Workspace(tmp_path, params("members.cnn.seeds=3"), loaded=PREPARED), "cnn")
    assert [run.digest for run in runs] == [digest(tmp_path, f"members.cnn.train.seed={seed}") for seed in (7, 8, 9)]
    assert [run.title for run in runs] == ["cnn seed 7", "cnn seed 8", "cnn seed 9"]


def test_a_student_of_another_run_of_its_teacher_is_another_run(tmp_path: Path) -> None:
    student = "members.cnn.teacher=[small]"
    assert digest(tmp_path, f"{student} members.small.alpha=1.0") != digest(tmp_path, student)


def test_an_optional_key_at_its_default_is_not_part_of_the_digest() -> None:
    member = params().members["cnn"]
    assert stated_keys(member).keys() == {"architecture", "image_size", "alpha", "weights", "train"}
    assert stated_keys(replace(member, seeds=2))["seeds"] == 2
    assert Member(**{**stated_keys(member), "train": member.train}) == member


def test_a_stored_run_is_read_from_its_file_or_described_by_its_fold_models(tmp_path: Path) -> None:
    run = run_of(tmp_path, PREPARED, params("train.epochs=3"), "cnn")
    write_run_file(run, ["train.epochs: 12 -> 3"])
    content = json.loads((run.folder / "run.json").read_text())
    assert content["difference"] == ["train.epochs: 12 -> 3"] and content["parameters"]["train"]["epochs"] == 3
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

    def prepared(competition: Competition, metric: str = "") -> Prepared:
        (tmp_path / "competition.json").write_bytes(competition.json_bytes())
        return load_prepared(tmp_path, metric)

    first = prepared(DIGITS)
    assert prepared(DIGITS, "accuracy").competition.metric == "accuracy" and first.competition.metric == "macro_f1"
    changes = {"predicts": "probabilities", "prediction_columns": ("a", "b"), "metric": "log_loss", "notes": ("x",)}
    per_class = replace(DIGITS, **changes)
    assert prepared(per_class).digest == prepared(DIGITS, "accuracy").digest == first.digest
    assert prepared(replace(DIGITS, classes=("a", "c"))).digest != first.digest
    several = replace(DIGITS, target="multi", metric="samples_f1", label_targets=("01", "11"))
    assert prepared(several).digest not in {first.digest, prepared(replace(several, label_targets=("01", "10"))).digest}
    assert prepared(replace(several, list_separator=";", allows_empty_lists=False)).digest == prepared(several).digest
    grades = replace(DIGITS, target="ordinal", metric="quadratic_kappa")  # are classes
    assert prepared(grades).digest == first.digest


def prepared_with(work: Path, recorded: dict[str, object]) -> Workspace:
    (work / "data").mkdir()
    write_manifest(work / "data" / "manifest.json", {"prepare": recorded}, [], {}, {})
    return Workspace(work, params())


def test_a_parameter_that_did_not_exist_when_the_data_were_prepared_needs_no_other_preparation(tmp_path, monkeypatch):
    recorded = to_plain(params().prepare)
    del recorded["largest_megapixels"]
    data = SimpleNamespace(competition=SimpleNamespace(target="single"))
    monkeypatch.setattr("competition.prepare.prepared.load_prepared", lambda *_: data)
    assert prepared_with(tmp_path, recorded).prepared is data


def test_a_parameter_that_the_data_were_prepared_with_may_not_change(tmp_path: Path) -> None:
    workspace = prepared_with(tmp_path, to_plain(params().prepare) | {"folds": 77, "gone": 1})
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
    scores = [
        honest_scores(tmp_path, "macro_f1", current)["a1b2"]["score"]
        for current in (blends / "now", blends / "other", None)
    ]
    assert scores == [0.8, 0.9, 0.9]
