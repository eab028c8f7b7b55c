"""Settings of a study: its folds, its name, and the values it starts with."""

from pathlib import Path

import pandas as pd
import pytest
from builders import params

from competition.config.errors import UserError
from competition.config.params import Params
from competition.files.manifest import write_json, write_manifest
from competition.prepare.adapter_types import Competition
from competition.prepare.prepared import Prepared
from competition.workspace.studies import tuning_dependencies, tuning_result_path
from competition.workspace.study_worker import study_settings
from competition.workspace.workspace import Workspace

COMPETITION = Competition("digits", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1"))
PREPARED = Prepared(Path("data"), COMPETITION, pd.DataFrame(), "d" * 64)
OWN = {"learning_rate": 0.004, "weight_decay": 0.05}


def finish(work: Path, settings: Params, name: str, values: dict, folds: list[int]) -> None:
    depends = tuning_dependencies(Workspace(Path(), settings, loaded=PREPARED), name)
    best = tuning_result_path(work, name, depends)
    write_json(best, {"values": values, "own_values": OWN, "folds": folds, "data": PREPARED.digest})
    write_manifest(best.with_name("manifest.json"), depends, [best], {"finished": str(len(values))}, {})


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("tune.trials=50 tune.hours=2.0 tune.patience=9 tune.confirm_seeds=5", True),
        ("tune.storage=sqlite:///a.db tune.heartbeat=1.0", True),
        ("tune.folds=[1,2]", False),
        ("tune.sampler=random", False),
        ("tune.search.learning_rate.high=0.5", False),
        ("train.epochs=3", False),
        ("train.learning_rate=0.1", False),
        ("members.small.alpha=1.0", True),
    ],
)
def test_more_time_continues_a_study_and_anything_that_changes_a_score_starts_another(
    tmp_path: Path, change: str, same: bool
) -> None:
    before, after = (study_settings(Workspace(tmp_path, params(text), loaded=PREPARED), "cnn") for text in ("", change))
    assert (before.name == after.name) == same
    assert before.own_values == OWN


def test_warm_starts_bring_the_folds_that_chose_them(tmp_path: Path) -> None:
    finish(tmp_path, params("tune.seed=7"), "cnn", {"learning_rate": 0.002}, [0, 4])
    finish(tmp_path, params("tune.seed=8"), "cnn", {"learning_rate": 9.0}, [3])  # outside the search space
    file = tmp_path / "values.yaml"
    file.write_text("values: [{learning_rate: 0.001, other: 5}, {weight_decay: 0.1}]\nfolds: []\n")
    settings = study_settings(
        Workspace(tmp_path, params(f"tune.warm_start=[earlier,family,{file}]"), loaded=PREPARED), "cnn"
    )
    assert settings.warm_start == [{"learning_rate": 0.002}, {"learning_rate": 0.001}, {"weight_decay": 0.1}]
    assert settings.folds == [0, 1, 4]


def test_a_warm_start_without_its_folds_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("values: {learning_rate: 0.001}\n")
    with pytest.raises(UserError, match="the folds whose labels chose them"):
        study_settings(Workspace(tmp_path, params(f"tune.warm_start=[{file}]"), loaded=PREPARED), "cnn")
    with pytest.raises(UserError, match="earlier, family or a YAML or JSON file"):
        study_settings(Workspace(tmp_path, params("tune.warm_start=[erlier]"), loaded=PREPARED), "cnn")
