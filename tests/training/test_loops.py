"""The training step in both loops: averages, freezing, clipping, losses, resuming, and the errors it raises."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_engines import TRAIN, State, engine_of, held_out, outcome, step_by_step, trained, uninterrupted_and_resumed

from competition.config.errors import UserError
from competition.training import loop
from competition.training.optimizer import NO_LIMIT, StepValues, losses, step_table

STEPS = 8


def test_keras_fit_and_our_own_loop_give_the_same_weights() -> None:
    options = {"ema": 0.9, "accumulate": 2, "focal_gamma": 1.0}
    own, fitted = outcome(2, **options), outcome(2, loop="fit", **options)
    assert own.keys() == fitted.keys()
    for name in own:
        np.testing.assert_allclose(fitted[name], own[name], rtol=0, atol=1e-5 * np.abs(own[name]).max(), err_msg=name)


def test_fit_stopped_within_an_epoch_and_resumed_is_bit_for_bit_the_same() -> None:
    uninterrupted, resumed = uninterrupted_and_resumed(loop="fit")
    for name in uninterrupted:
        np.testing.assert_array_equal(resumed[name], uninterrupted[name], err_msg=name)


def test_the_moving_average_covers_all_states_of_the_model() -> None:
    states = step_by_step(ema=0.6)
    names = [name for name in states[0] if name.startswith("model/")]
    assert any("moving_mean" in name for name in names)
    for name in names:
        expected = states[0][name].astype(np.float64)
        for step, state in enumerate(states[1:]):
            keep = min(0.6, (1 + step) / (10 + step))
            expected = keep * expected + (1 - keep) * state[name]
        np.testing.assert_allclose(
            states[-1][name.replace("model/", "average/")], expected, rtol=0, atol=1e-5, err_msg=name
        )


def test_the_moving_average_is_used_for_prediction_and_saved() -> None:
    engine = engine_of(replace(TRAIN, ema=0.9))
    trained(engine, replace(TRAIN, ema=0.9))
    state, weights = engine.state(), engine.weights()
    kernel = next(name for name in weights if "logits/kernel" in name)
    np.testing.assert_array_equal(weights[kernel], state[kernel.replace("model/", "average/")])
    assert not np.array_equal(weights[kernel], state[kernel])
    before = held_out(engine)
    np.testing.assert_array_equal(
        engine.state()[kernel], state[kernel]
    )  # prediction does not change the training state
    engine.load_weights(weights)
    np.testing.assert_array_equal(held_out(engine), before)


def changed_variables(before: State, after: State) -> dict[str, bool]:
    return {
        name.split("/", 2)[2]: not np.array_equal(before[name], after[name])
        for name in before
        if name.startswith("model/") and "moving" not in name
    }


def test_only_the_head_learns_while_the_rest_is_frozen() -> None:
    states = step_by_step(freeze_epochs=1)
    half = STEPS // 2
    frozen, thawed = changed_variables(states[0], states[half]), changed_variables(states[half], states[-1])
    assert frozen == {name: name.startswith("logits/") for name in frozen}
    assert all(thawed.values())


def test_the_step_table_holds_rates_corrections_and_limits() -> None:
    values = StepValues(0.1, 0.0, 2.0, 1.0, 1e-7, 0.5, layer_decay=0.01, freeze_steps=1)
    table = step_table(
        np.array([1e-3, 2e-3], np.float32), 0, values, np.array([0.0, 0.5, 1.0]), np.array([False, False, True])
    )
    first, second = table
    np.testing.assert_allclose(first[:8], [1e-3, 0.001**0.5 / 0.1, 0.1, 0.1, NO_LIMIT, 2.0, 1.0, 1e-7], rtol=1e-6)
    np.testing.assert_allclose(second[1], (1 - 0.999**2) ** 0.5 / (1 - 0.9**2), rtol=1e-6)
    np.testing.assert_allclose(first[8:], [0, 0, 1])
    np.testing.assert_allclose(second[8:], [0.01, 0.1, 1], rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_focal_loss_agrees_with_its_paper(gamma: float) -> None:
    targets, logits = np.eye(3, dtype=np.float32)[[0, 2]], np.array([[1.0, 2.0, 0.5], [0.1, 0.2, 30.0]], np.float32)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    own = probs[[0, 1], [0, 2]].astype(np.float64)
    result = losses(targets, logits, np.array([1.0, 3.0], np.float32), gamma)
    np.testing.assert_allclose(
        np.asarray(result), -np.array([1, 3]) * (1 - own) ** gamma * np.log(own), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("changes", "limited"), [({"clip_value": 1e-4}, "value"), ({"clip_norm": 1e-4}, "norm")])
def test_gradients_are_clipped(changes: dict[str, Any], limited: str) -> None:
    """The first moment after one step is a tenth of the clipped gradient."""
    state = step_by_step(**{"clip_norm": 0.0, **changes})[1]
    gradients = [10 * value for name, value in state.items() if name.endswith("/m")]
    largest = max(np.abs(g).max() for g in gradients)
    norm = sum(np.square(g).sum() for g in gradients) ** 0.5
    assert (largest if limited == "value" else norm) == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize("driven_by", ["custom", "fit"])
def test_a_loss_that_is_not_finite_stops_the_fold(driven_by: str) -> None:
    train = replace(TRAIN, learning_rate=1e30, warmup=0.0, clip_norm=0.0, loop=driven_by)
    with pytest.raises(loop.Diverged, match="learning rate"):
        trained(engine_of(train), train)


def test_a_trial_cannot_switch_the_average_on() -> None:
    with pytest.raises(UserError, match=r"train\.ema"):
        trained(engine_of(TRAIN), replace(TRAIN, ema=0.9))


def test_hosts_save_and_stop_together() -> None:
    """A host that saves at another step has no checkpoint in common; one that stops alone leaves the others waiting."""

    class Host:
        def __init__(self, others: list[int]) -> None:
            self._others = others

        def all_gather(self, number: int) -> list[int]:
            return [number, *self._others]

    assert loop._agreed(Host([]), False, True) == (False, True)
    assert loop._agreed(Host([0, 0]), False, False) == (False, False)
    assert loop._agreed(Host([0, 1]), False, False) == (True, False)
    assert loop._agreed(Host([2, 1]), False, False) == (True, True)


def test_weights_of_another_model_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="differ"):
        engine_of(TRAIN).load_weights({"model/0000/nothing/kernel": np.zeros(3, np.float32)})
