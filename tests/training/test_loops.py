"""The training step: averages, freezing, clipping, losses, learning rates, and the errors it raises."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_engines import TRAIN, State, engine_of, held_out, step_by_step, trained

from competition.config.errors import UserError
from competition.training import loop
from competition.training.optimizer import NO_LIMIT, losses, step_table

STEPS = 8


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
    train = replace(TRAIN, ema=0.9)
    engine = engine_of(train)
    trained(engine, train)
    state, weights = engine.state(), engine.weights()
    kernel = next(name for name in weights if "logits/kernel" in name)
    np.testing.assert_array_equal(weights[kernel], state[kernel.replace("model/", "average/")])
    assert not np.array_equal(weights[kernel], state[kernel])
    before = held_out(engine)
    np.testing.assert_array_equal(engine.state()[kernel], state[kernel])  # prediction leaves the training state alone
    engine.load_weights(weights)
    np.testing.assert_array_equal(held_out(engine), before)
    with pytest.raises(UserError, match=r"train\.ema"):  # a trial cannot switch it off
        trained(engine, TRAIN)


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
    options = {"clip_value": 2.0, "focal_gamma": 1.0, "ema": 0.5, "layer_decay": 0.01, "freeze_epochs": 1}
    train = replace(TRAIN, weight_decay=0.1, clip_norm=0.0, epsilon=1e-7, **options)
    table = step_table(
        np.array([1e-3, 2e-3], np.float32), 0, train, 1, np.array([0.0, 0.5, 1.0]), np.array([False, False, True])
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


def test_weights_of_another_model_are_an_error() -> None:
    with pytest.raises(ValueError, match="differ"):
        engine_of(TRAIN).load_weights({"model/0000/nothing/kernel": np.zeros(3, np.float32)})


@pytest.mark.parametrize(("warmup", "rising"), [(0.1, 10), (0.0, 0), (1.0, 100)])
def test_the_rate_rises_linearly_to_the_peak_and_falls_as_half_a_cosine_above_0(warmup: float, rising: int) -> None:
    rates = loop.warmup_cosine(1.0, 100, warmup)
    falling = 100 - rising
    expected = 0.5 * (1 + np.cos(np.pi * np.arange(1, falling + 1) / (falling + 1)))
    np.testing.assert_allclose(rates, [*(np.arange(1, rising + 1) / max(rising, 1)), *expected], atol=1e-6)
    assert rates.dtype == np.float32 and (rates > 0).all() and loop.warmup_cosine(0.5, 1, warmup).shape == (1,)
