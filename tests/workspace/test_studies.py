"""Studies: what continues one, the values and folds it starts with, and whose results are used for training."""

from pathlib import Path

import pandas as pd
import pytest
from builders import params, run_of

from competition.config.errors import UserError
from competition.config.params import Member, Params
from competition.files.manifest import write_json, write_manifest
from competition.prepare.adapter_types import Competition
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import fold_model, fold_views
from competition.workspace.studies import (
    member_with_tuned_values,
    study_differences,
    tuning_dependencies,
    tuning_result_path,
)
from competition.workspace.study_worker import study_settings
from competition.workspace.workspace import Workspace

DIGITS = Competition("digits", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1"))
PREPARED = Prepared(Path("data"), DIGITS, pd.DataFrame(), "d" * 64)
OWN = {"learning_rate": 0.004, "weight_decay": 0.05}


def workspace_with(work: Path, overrides: str = "") -> Workspace:
    return Workspace(work, params(overrides), loaded=PREPARED)


def result_path(work: Path, settings: Params) -> Path:
    return tuning_result_path(work, "cnn", tuning_dependencies(Workspace(Path(), settings, loaded=PREPARED), "cnn"))


def finish_study(work: Path, settings: Params, values: dict[str, float], folds: list[int]) -> None:
    """Write the files of a finished study, like `make tune`."""
    best, own_values = result_path(work, settings), {key: OWN[key] for key in values}
    chosen = {"values": values, "own_values": own_values, "folds": folds}
    write_json(best, {**chosen, "data": PREPARED.digest, "front": [], "tried": {}})
    depends = tuning_dependencies(Workspace(Path(), settings, loaded=PREPARED), "cnn")
    finished = f"{len(list((work / 'tune' / 'cnn').iterdir())):03}"
    write_manifest(best.with_name("manifest.json"), depends, [best], {"finished": finished}, {})


def tuned(work: Path, overrides: str = "") -> tuple[Member, dict[str, str]]:
    return member_with_tuned_values(workspace_with(work, overrides), "cnn")


def test_tuned_values_are_used_only_if_their_study_is_finished_and_intact(tmp_path: Path) -> None:
    best = result_path(tmp_path, params())
    assert tuned(tmp_path) == (params().members["cnn"], {})
    write_json(best, {"values": {"learning_rate": 0.25}, "folds": [0]})
    assert tuned(tmp_path)[1] == {}  # no manifest: unfinished
    finish_study(tmp_path, params(), {"learning_rate": 0.25}, [0])
    member, origins = tuned(tmp_path)
    assert member.train.learning_rate == 0.25 and origins == {"learning_rate": "0.25 (tuned)"}
    best.write_text("{}")
    assert tuned(tmp_path)[1] == {}


@pytest.mark.parametrize(
    ("change", "used"),
    [
        ("tune.trials=7 tune.seed=9 tune.folds=[2,3] tune.search.learning_rate.high=0.5 members.small.alpha=1.0", True),
        ("train.learning_rate=0.125", False),  # a searched value, but the study's first trial had another one
        ("train.learning_rate=0.25 members.cnn.train.weight_decay=0.5", True),  # the result was adopted
        ("members.cnn.architecture=MobileNetV2", False),
        ("train.epochs=3", False),
        ("prepare.fit=crop", False),
    ],
)
def test_tuned_values_are_used_only_for_the_member_and_data_they_were_tuned_with(tmp_path, change, used):
    finish_study(tmp_path, params("tune.trials=9"), {"learning_rate": 0.25, "weight_decay": 0.5}, [1])
    member, _ = tuned(tmp_path, change)
    assert (member.train.weight_decay == 0.5) == used == (member.tuned_folds == (1,))
    assert bool(study_differences(workspace_with(tmp_path, change), "cnn")) != used


def test_a_study_that_follows_an_adopted_trial_is_used_although_the_file_states_its_folds(tmp_path: Path) -> None:
    adopted = "members.cnn.tuned_folds=[0,1]"  # as `make adopt` writes them
    finish_study(tmp_path, params(adopted), {"learning_rate": 0.25}, [0, 1])
    assert tuned(tmp_path, adopted)[0].train.learning_rate == 0.25


def test_an_adopted_first_trial_is_used_whichever_trial_won(tmp_path: Path) -> None:
    finish_study(tmp_path, params(), {"learning_rate": 0.25}, [0, 1])
    member, _ = tuned(tmp_path, "members.cnn.tuned_folds=[0,1]")
    assert member.train.learning_rate == OWN["learning_rate"] and member.tuned_folds == (0, 1)


def test_a_fold_model_records_the_folds_that_it_and_its_teachers_were_tuned_on(tmp_path: Path) -> None:
    overrides = "members.small.teacher=[cnn] members.small.tuned_folds=[4]"
    settings = params(overrides)
    finish_study(tmp_path, settings, {"learning_rate": 0.25}, [0, 2])
    assert fold_model(run_of(tmp_path, PREPARED, settings, "cnn"), 1).depends["tuned_folds"] == [0, 2]
    student = run_of(tmp_path, PREPARED, settings, "small")
    assert fold_model(student, 1).depends["tuned_folds"] == [0, 2, 4]
    assert fold_views(student, settings, 1).depends["tuned_folds"] == [0, 2, 4]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("tune.trials=50 tune.hours=2.0 tune.patience=9 tune.confirm_seeds=5 members.small.alpha=1.0", True),
        ("tune.folds=[1,2]", False),
        ("tune.sampler=random", False),
        ("tune.search.learning_rate.high=0.5", False),
        ("train.epochs=3", False),
    ],
)
def test_more_time_continues_a_study_and_anything_that_changes_a_score_starts_another(tmp_path, change, same):
    before, after = (study_settings(workspace_with(tmp_path, text), "cnn") for text in ("", change))
    assert (before.name == after.name) == same
    assert before.own_values == OWN


def test_warm_starts_bring_the_folds_that_chose_them(tmp_path: Path) -> None:
    finish_study(tmp_path, params("tune.seed=7"), {"learning_rate": 0.002}, [0, 4])
    finish_study(tmp_path, params("tune.seed=8"), {"learning_rate": 9.0}, [3])  # outside the search space
    file = tmp_path / "values.yaml"
    file.write_text("values: [{learning_rate: 0.001, other: 5}, {weight_decay: 0.1}]\nfolds: []\n")
    settings = study_settings(workspace_with(tmp_path, f"tune.warm_start=[earlier,family,{file}]"), "cnn")
    assert settings.warm_start == [{"learning_rate": 0.002}, {"learning_rate": 0.001}, {"weight_decay": 0.1}]
    assert settings.folds == [0, 1, 4]


def test_a_warm_start_without_its_folds_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("values: {learning_rate: 0.001}\n")
    with pytest.raises(UserError, match="the folds whose labels chose them"):
        study_settings(workspace_with(tmp_path, f"tune.warm_start=[{file}]"), "cnn")
    with pytest.raises(UserError, match="earlier, family or a YAML or JSON file"):
        study_settings(workspace_with(tmp_path, "tune.warm_start=[erlier]"), "cnn")
