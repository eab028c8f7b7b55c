from dataclasses import fields, replace

import pytest
from builders import ROOT, member, params

from competition.config.errors import UserError
from competition.config.params import Dimension, Head
from competition.config.params_file import load_params
from competition.config.search_space import compiled_key, grid, own_values, with_values
from competition.tuning.choice import format_values


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("{lerning_rate: {low: 1, high: 2}}", "no parameter that a trial can change; did you mean 'learning_rate'?"),
        ("{batch: {low: 16, high: 64.5}}", "batch is a whole number"),
        ("{batch: {choices: [16, 32.5]}}", "search.batch.choices.1: 32.5 was found; input should be a valid integer"),
        ("{flip: {low: 1, high: 2}}", "choices: [...] was expected"),
        ("{flip: {choices: [none, horizontl]}}", "'horizontl' was found; input should be 'none', 'horizontal' or"),
        ("{shift: {low: 0.1, high: 0.9}}", "tune.search.shift.high: 0.9 was found; input should be less than or equal"),
        ("{shift: {low: 0.1, high: 0.2, choices: [1, 2]}}", "either choices or an interval"),
        ("{mixup: {low: 0.1, high: 1, log: true, step: 0.1}}", "a logarithmic interval has no step"),
        ("{mixup: {low: 0.1, high: 1, when: {flip: both}}}", "search.mixup.when.flip: not a searched parameter"),
        ("{mixup: {low: 0.1, high: 1, when: {flip: up}}, flip: {choices: [none, both]}}", "'up' is no choice of flip"),
        ("{architecture: {choices: [cnn, Xception]}, weights: {choices: [none, imagenet]}}", "`when` excludes it"),
        ("{probe: {choices: [true, false]}}", "train.probe needs pretrained weights"),
        ("{}", "at least one parameter to search was expected"),
    ],
)
def test_a_search_that_could_fail_in_a_trial_is_an_error_at_once(search: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        params(f"'tune.search={search}'")
    assert "SET tune.search" in str(error.value) and message in str(error.value)


def test_a_grid_needs_steps_or_choices() -> None:
    with pytest.raises(UserError, match="needs step or choices"):
        params("tune.sampler=grid")


@pytest.mark.parametrize(("folds", "tuned"), [(2, ()), (3, (0, 1)), (4, (0, 1)), (9, (0, 1))])
def test_the_default_folds_leave_rows_for_the_honest_score(folds: int, tuned: tuple[int, ...]) -> None:
    assert params(f"prepare.folds={folds}").tune.folds == tuned


def test_every_training_parameter_is_read_at_run_time_or_part_of_the_compiled_key() -> None:
    """The engine's constants are exactly what model, engine and trainer are built from; a new parameter is one by default."""
    before = member()
    changed = {
        field.name
        for field in fields(before.train)
        if type(value := getattr(before.train, field.name)) in (int, float)
        if compiled_key(replace(before, train=replace(before.train, **{field.name: value + 1}))) != compiled_key(before)
    }
    expected = "batch dropout norm_momentum accumulate ema low_resolution_epochs trained_share"
    assert changed == set(expected.split())


def test_a_member_keeps_its_own_choice_of_a_strength_unless_it_states_one() -> None:
    search = {"head.strength": Dimension(low=9.0, high=11.0)}
    for strengths in ((), (0.1, 1.0)):  # each fold model chooses
        chooses = replace(member(), head=Head("linear", strengths=strengths))
        own = own_values(chooses, search)
        assert with_values(chooses, own) == chooses and format_values(own) == "head.strength chosen in each fold"
    states = replace(member(), head=Head("linear", strengths=(10.0,)))
    assert own_values(states, search) == {"head.strength": 10.0}
    assert with_values(chooses, {"head.strength": 10.0}) == states


def test_a_grid_has_every_combination_once_without_inactive_parameters() -> None:
    search = {
        "low_resolution_size": Dimension(choices=(0.5, 0.75), when={"low_resolution_epochs": (0.5,)}),
        "low_resolution_epochs": Dimension(choices=(0.0, 0.5)),
        "epochs": Dimension(low=2, high=4, step=2),
    }
    combinations = grid(search)
    assert len(combinations) == 2 * (1 + 2)
    assert all(("low_resolution_size" in values) == (values["low_resolution_epochs"] == 0.5) for values in combinations)


def test_members_of_the_base_that_a_file_replaces_are_not_tuned_unless_another_file_has_them_again(tmp_path) -> None:
    wide, small = (
        f"members: {{{name}: {{architecture: cnn, image_size: 16, alpha: 1.0, weights: none}}}}"
        for name in ("wide", "small")
    )
    for tune, trials in (("", 0), ("tune: {trials: 5}", 5)):
        for name, base, text in (
            ("wide", ROOT / "params.yaml", f"{wide}\n{tune}"),
            ("again", "wide.yaml", small),
            ("same", "wide.yaml", ""),
        ):
            (tmp_path / f"{name}.yaml").write_text(f"extends: {base}\n{text}\n")
        read = {name: load_params(tmp_path / f"{name}.yaml").tune for name in ("wide", "again", "same")}
        assert {name: one.members for name, one in read.items()} == {"wide": (), "again": ("small",), "same": ()}
        assert {name: one.trials for name, one in read.items()} == {
            "wide": trials,
            "again": trials or 3,
            "same": trials,
        }
