import json
from pathlib import Path

import pytest
from builders import params, run_of
from two_classes import PREPARED

from competition.config.params import Member
from competition.config.search_space import is_tuned
from competition.files.manifest import write_json, write_manifest
from competition.workspace import studies
from competition.workspace.dependencies import fold_model, fold_views
from competition.workspace.study_worker import study_settings
from competition.workspace.workspace import Workspace

OWN = {"learning_rate": 0.004, "weight_decay": 0.05}


def workspace_with(work: Path, overrides: str = "") -> Workspace:
    return Workspace(work, params(overrides), loaded=PREPARED)


def finish_study(work: Path, overrides: str, values: dict[str, float], folds: list[int]) -> Path:
    """Write the files of a finished study, like `make tune`; return the path of its result."""
    depends = studies.tuning_dependencies(workspace_with(work, overrides), "cnn")
    best, own_values = studies.tuning_result_path(work, "cnn", depends), {key: OWN[key] for key in values}
    result = {"values": values, "own_values": own_values, "folds": folds, "data": PREPARED.digest, "tried": {}}
    result |= {"finished": f"{len(list((work / 'tune' / 'cnn').glob('*'))):03}"}
    write_json(best, result)
    write_manifest(best.with_name("manifest.json"), depends, [best], result, {})
    return best


def tuned(work: Path, overrides: str = "") -> tuple[Member, dict[str, str]]:
    return studies.member_with_tuned_values(workspace_with(work, overrides), "cnn")


def test_tuned_values_are_used_only_if_their_study_is_finished_and_intact(tmp_path: Path) -> None:
    assert tuned(tmp_path) == (params().members["cnn"], {})
    best = finish_study(tmp_path, "", {"learning_rate": 0.25}, [0])
    member, origins = tuned(tmp_path)
    assert member.train.learning_rate == 0.25 and origins == {"learning_rate": "0.25 (tuned)"}
    best.write_text("{}")
    assert tuned(tmp_path)[1] == {}
    finish_study(tmp_path, "", {"learning_rate": 0.25}, [0]).with_name("manifest.json").unlink()
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
    finish_study(tmp_path, "tune.trials=9", {"learning_rate": 0.25, "weight_decay": 0.5}, [1])
    member, _ = tuned(tmp_path, change)
    assert (member.train.weight_decay == 0.5) == used == (member.tuned_folds == (1,))
    assert bool(studies.study_differences(workspace_with(tmp_path, change), "cnn")) != used


def test_a_member_that_states_its_tuned_folds_has_the_values_that_it_states(tmp_path: Path) -> None:
    finish_study(tmp_path, "", {"learning_rate": 0.25}, [0, 1])
    # As `make adopt` writes them: of the first trial.
    member, origins = tuned(tmp_path, "members.cnn.tuned_folds=[0,1]")
    assert member.train.learning_rate == OWN["learning_rate"] and member.tuned_folds == (0, 1) and origins == {}
    assert not is_tuned(member, "cnn", params("tune.members=[]").tune)


def test_the_folds_that_chose_copied_values_count_as_tuned_whatever_a_later_study_or_the_file_says(tmp_path) -> None:
    finish_study(tmp_path, "", {"learning_rate": 0.25}, [0, 1])
    copied = "members.cnn.train.learning_rate=0.25"  # by hand
    later = finish_study(tmp_path, f"{copied} tune.folds=[2,3]", {"learning_rate": 0.125}, [2, 3])
    result = json.loads(later.read_text()) | {"own_values": {"learning_rate": 0.25}}
    write_json(later, result)
    depends = studies.tuning_dependencies(workspace_with(tmp_path, f"{copied} tune.folds=[2,3]"), "cnn")
    write_manifest(later.with_name("manifest.json"), depends, [later], result, {})
    member, _ = tuned(tmp_path, f"{copied} tune.folds=[2,3]")
    assert member.train.learning_rate == 0.125 and member.tuned_folds == (0, 1, 2, 3)
    assert tuned(tmp_path, f"{copied} members.cnn.tuned_folds=[4]")[0].tuned_folds == (0, 1, 4)


def test_a_fold_model_records_the_folds_that_it_and_its_teachers_were_tuned_on(tmp_path: Path) -> None:
    overrides = "members.small.teacher=[cnn] members.small.tuned_folds=[4]"
    settings = params(overrides)
    finish_study(tmp_path, overrides, {"learning_rate": 0.25}, [0, 2])
    assert fold_model(run_of(tmp_path, PREPARED, settings, "cnn"), 1).depends["tuned_folds"] == [0, 2]
    student = run_of(tmp_path, PREPARED, settings, "small")
    assert fold_model(student, 1).depends["tuned_folds"] == [0, 2, 4]
    assert fold_views(student, settings, 1).depends["tuned_folds"] == [0, 2, 4]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("tune.trials=50 tune.hours=2.0 tune.confirm_seeds=5 members.small.alpha=1.0", True),
        ("tune.folds=[1,2]", False),
        ("tune.sampler=random", False),
        ("tune.search.learning_rate.high=0.5", False),
        ("train.epochs=3", False),
    ],
)
def test_more_time_continues_a_study_and_anything_that_changes_a_score_starts_another(tmp_path, change, same):
    before, after = (study_settings(workspace_with(tmp_path, text), "cnn") for text in ("", change))
    assert (before.name == after.name) == same and before.own_values == OWN


def test_warm_starts_bring_the_folds_that_chose_them(tmp_path: Path) -> None:
    finish_study(tmp_path, "tune.seed=7", {"learning_rate": 0.002}, [0, 4])
    finish_study(tmp_path, "tune.seed=8", {"learning_rate": 9.0}, [3])  # outside the search space
    settings = study_settings(workspace_with(tmp_path, "tune.warm_start=[earlier,family]"), "cnn")
    assert settings.warm_start == [{"learning_rate": 0.002}] and settings.folds == [0, 1, 4]
