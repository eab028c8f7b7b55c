"""Results of the earlier layout become runs, once and whole, whatever is killed when."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from builders import params, run_of
from killing import is_killed

from competition.artifacts.dependencies import (
    fold_model_path,
    fold_views_path,
    is_trained,
    newest_blend,
    soft_labels_dependencies,
    soft_labels_path,
    views_dependencies,
)
from competition.artifacts.manifest import is_current, read_manifest, sha256, write_json, write_manifest
from competition.artifacts.migration import migrate
from competition.artifacts.runs import Run, stored_runs
from competition.artifacts.studies import used_study
from competition.config.params import Params
from competition.data.competition import Competition
from competition.data.index import COLUMNS
from competition.data.prepared import Prepared, load_prepared

SETTINGS = params(
    "prepare.folds=2 predict.views=[identity] members.small.teacher=[cnn] tune.trials=3 tune.folds=[0,1] tune.members=[cnn]"
)
FOLDS = range(2)


def earlier_member(settings: Params, name: str, tuned_folds: tuple[int, ...] = ()) -> dict[str, Any]:
    member = asdict(replace(settings.members[name], tuned_folds=tuned_folds))
    del member["seeds"]  # the earlier layout had no such key
    return member


def write_result(manifest: Path, depends: dict[str, Any], names: list[str], result: dict[str, Any]) -> None:
    manifest.parent.mkdir(parents=True, exist_ok=True)
    files = [manifest.with_name(name) for name in names]
    for file in files:
        if not file.exists():
            file.write_text(str(file.relative_to(manifest.parents[3])))
    write_manifest(manifest, depends, files, result, {})


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Two members, one a student of the other, with predictions, soft labels, a study and a blend."""
    work = tmp_path / "work" / "small"
    data = work / "data"
    data.mkdir(parents=True)
    Competition("small", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1")).save(
        data / "competition.json"
    )
    (data / "index.csv").write_text(",".join(COLUMNS) + "\n")
    digest = sha256(data / "index.csv") + sha256(data / "competition.json")
    weights: dict[str, str] = {}
    for name, teachers in (("cnn", ()), ("small", ("cnn",))):
        for fold in FOLDS:
            folder = work / "members" / name / f"fold{fold}"
            depends = {
                "data": digest, "fit": "squash", "fold": fold, "member": earlier_member(SETTINGS, name), "weights": "",
                "teachers": {teacher: {str(fold): weights[str(fold)]} for teacher in teachers}, "tuned_folds": [],
            }  # fmt: skip
            names = ["weights.npz", "history.csv", "oof.npz"]
            write_result(folder / "manifest.json", depends, names, {"held_out": 0.5})
            model = sha256(folder / "weights.npz")
            weights.setdefault(str(fold), model)
            views = {"data": digest, "fit": "squash", "views": ["identity"], "model": model, "tuned_folds": []}
            write_result(folder / "views" / "manifest.json", views, ["oof.npz", "test.npz"], {})
            if not teachers:
                soft = {"data": digest, "fit": "squash", "model": model}
                write_result(folder / "soft" / "manifest.json", soft, ["soft.npz"], {})
    best = work / "tune" / "cnn" / "best.json"
    write_json(best, {"values": {"learning_rate": 0.5}, "folds": [0]})
    study = {
        "data": digest, "fit": "squash", "member": earlier_member(SETTINGS, "cnn"), "weights": "",
        **{key: value for key, value in asdict(SETTINGS.tune).items() if key != "members"},
    }  # fmt: skip
    (work / "tune" / "cnn" / "study.log").write_text("{}\n")
    write_manifest(best.with_name("manifest.json"), study, [best], {"trials": 3}, {})
    (work / "blend").mkdir()
    (work / "blend" / "scores.json").write_text("{}")
    write_manifest(work / "blend" / "manifest.json", {}, [work / "blend" / "scores.json"], {"file": "x.csv"}, {})
    return work


def prepared_in(work: Path) -> Prepared:
    return load_prepared(work / "data")


def untuned_runs(work: Path) -> list[Run]:
    """The runs as if there were no study: the members were trained before it."""
    hidden = work / "hidden"
    if (work / "tune").exists():
        (work / "tune").rename(hidden)
    runs = [run_of(work, prepared_in(work), SETTINGS, name) for name in ("cnn", "small")]
    if hidden.exists():
        hidden.rename(work / "tune")
    return runs


def check_migrated(work: Path) -> None:
    """Every result is at its place and current."""
    for run in untuned_runs(work):
        for fold in FOLDS:
            assert is_trained(run, fold)
            assert read_manifest(fold_model_path(run, fold)).result == {"held_out": 0.5, "metric": "macro_f1"}  # type: ignore[union-attr]
            assert is_current(fold_views_path(run, SETTINGS, fold), views_dependencies(run, SETTINGS, fold))
            if run.name == "cnn":
                assert is_current(soft_labels_path(run, fold), soft_labels_dependencies(run, fold))
    assert {run.digest for run in stored_runs(work)} == {run.digest for run in untuned_runs(work)}
    study = used_study(work, prepared_in(work), SETTINGS, "cnn")
    assert study is not None and study.with_name("study.log").exists()
    blend = newest_blend(work)
    assert blend is not None and (blend / "scores.json").read_text() == "{}"
    assert not [path for path in work.rglob("*") if path.name.endswith(".moving")]


def test_results_of_the_earlier_layout_are_current_runs_afterwards(work: Path) -> None:
    before = {path.read_bytes() for path in work.rglob("*.npz")}
    sentence = migrate(work)
    assert sentence.startswith("runs: 4 fold models, 1 study and 1 blend of the earlier layout were moved into")
    check_migrated(work)
    assert {path.read_bytes() for path in work.rglob("*.npz")} == before
    assert migrate(work) == ""


def test_what_cannot_be_identified_stays_and_is_named_once(work: Path) -> None:
    (work / "members" / "cnn" / "fold1" / "manifest.json").unlink()
    sentence = migrate(work)
    assert "3 fold models" not in sentence and "2 fold models" in sentence  # the student of a lost teacher stays
    assert "members/cnn/fold1 (unfinished)" in sentence
    assert "members/small/fold1 (its parameters or its teachers are of another version)" in sentence
    assert (work / "members" / "cnn" / "fold1" / "weights.npz").exists() and migrate(work) == ""


def test_models_of_other_data_become_runs_of_other_data(work: Path) -> None:
    (work / "data" / "index.csv").write_text(",".join(COLUMNS) + "\n\n")  # other bytes
    migrate(work)
    old = stored_runs(work)[0]
    assert old.depends["data"] != prepared_in(work).digest and not any(is_trained(run, 0) for run in untuned_runs(work))


def test_a_run_that_is_trained_already_is_not_replaced(work: Path, tmp_path: Path) -> None:
    (run, _) = untuned_runs(work)
    fold_model_path(run, 0).parent.mkdir(parents=True)
    fold_model_path(run, 0).with_name("weights.npz").write_text("mine")
    assert "members/cnn/fold0 (members/cnn/" in migrate(work)
    assert fold_model_path(run, 0).with_name("weights.npz").read_text() == "mine"


def test_raw_files_do_not_depend_on_the_metric_any_more(work: Path) -> None:
    write_manifest(work / "raw.json", {"competition": {"metric": "accuracy", "name": "x"}, "source": ""}, [], {}, {})
    migrate(work)
    assert is_current(work / "raw.json", {"competition": {"metric": "", "name": "x"}, "source": ""})


@pytest.mark.timeout(600)
def test_a_kill_at_any_moment_loses_nothing(work: Path, tmp_path: Path) -> None:
    code = (
        f"from pathlib import Path\nfrom competition.artifacts.migration import migrate\nmigrate(Path({str(work)!r}))"
    )
    kills = 0
    while is_killed(code, 4 * kills + kills % 4):  # every run of it is killed some steps later than the one before
        kills += 1
    assert kills >= 4
    check_migrated(work)
    again = tmp_path / "again"
    shutil.copytree(work, again)
    assert migrate(again) == "" and json.loads((again / "members" / "cnn").glob("*/run.json").__next__().read_text())
