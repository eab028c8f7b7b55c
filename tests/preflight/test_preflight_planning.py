"""Hours, sessions and dollars of a plan, with numbers that can be checked by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.preflight.planning import KNOWN, Sizes, bills, load_of, sessions_for, sizes_of

PARAMS = load_params(Path(__file__).parents[2] / "params.yaml")


def test_the_load_counts_folds_epochs_views_and_trials() -> None:
    member = PARAMS.members["cnn"]
    member = replace(member, train=replace(member.train, epochs=3, batch=10))
    params = replace(
        PARAMS,
        prepare=replace(PARAMS.prepare, folds=5),
        predict=replace(PARAMS.predict, views=("identity", "flip_lr")),
        tune=replace(PARAMS.tune, trials=4, folds=(0, 1), members=(), pruner="none"),
    )
    load = load_of(member, params, "cnn", Sizes(10, 100, 50), replicas=4)
    assert load.steps == 3 * (80 // 12)  # a batch of 10 becomes 12 on 4 replicas
    assert load.scored == 3 * 20
    # A trial is trained once, on one fold where a fold model has four; so are the best and the own values, with two seeds.
    assert load.runs == 5 + 4 * 1 / 4 + 2 * 2 / 4 and load.pruned == 0 and load.trials == 4
    all_folds_params = replace(params, tune=replace(params.tune, trained_on="all_folds"))
    assert load_of(member, all_folds_params, "cnn", Sizes(10, 100, 50), replicas=4).runs == 5 + 4 * 1 + 2 * 2
    pruning = replace(params, tune=replace(params.tune, pruner="asha", trials=23))
    pruned = load_of(member, pruning, "cnn", Sizes(10, 100, 50), replicas=4)
    assert pruned.pruned == (23 - 3) / 4 * 0.5 and pruned.runs == 5 + 23 / 4 - pruned.pruned + 1
    assert load.predicted == 2 * (100 + 5 * 50)


def test_the_load_of_a_nested_teacher_counts_a_model_for_each_pair_of_folds() -> None:
    student = replace(PARAMS.members["small"], teacher=("cnn",), teacher_scheme="nested")
    params = replace(PARAMS, members={**PARAMS.members, "small": student}, tune=replace(PARAMS.tune, trials=0))
    runs = {name: load_of(member, params, name, Sizes(10, 100, 50), 1).runs for name, member in params.members.items()}
    assert runs == {"cnn": 5 + 10, "small": 5}


@pytest.mark.parametrize(("hours", "sessions"), [(0.5, 1), (8.75, 1), (8.8, 2), (20, 3)])
def test_work_is_split_into_sessions_with_time_for_setup(hours: float, sessions: int) -> None:
    result = sessions_for(hours * 3600, session_hours=9, weekly_hours=20, setup_hours=0.25)
    assert result.sessions == sessions
    assert result.hours == pytest.approx(hours + sessions * 0.25)
    assert result.share_of_week == pytest.approx(result.hours / 20)
    assert result.weeks == (2 if result.hours > 20 else 1)


def test_bills_are_sorted_and_unknown_prices_are_excluded() -> None:
    rows = [
        {"region": "here", "on_demand": 4.5, "preemptible": 1.35, "as_of": "2020-06-01"},
        {"region": "there", "on_demand": 4.0, "preemptible": None, "as_of": "2020-06-01"},
    ]
    cloud_bills = bills(2, "v2-8", {"v2-8": rows})
    assert [(bill.region, bill.kind, bill.dollars) for bill in cloud_bills] == [
        ("here", "preemptible", 2.7),
        ("there", "on demand", 8.0),
        ("here", "on demand", 9.0),
    ]
    assert bills(2, "v9-8", {"v2-8": rows}) == []


def test_the_sizes_of_the_built_in_competitions_are_known_before_the_download(tmp_path: Path) -> None:
    assert KNOWN["flowers"] == Sizes(104, 16465, 7382)
    assert sizes_of(tmp_path, PARAMS) == Sizes(10, 1347, 450)
    mini = replace(PARAMS, competition=replace(PARAMS.competition, adapter="flowers", miniature=0.1))
    with pytest.raises(UserError, match="run `make download` first"):
        sizes_of(tmp_path, mini)
