"""The training step: averages, freezing, clipping, losses, learning rates, and the errors it raises."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_engines import TRAIN, engine_of, held_out, trained

from competition.config.errors import UserError
from competition.training import loop


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


@pytest.mark.parametrize(("changes", "limited"), [({"clip_value": 1e-4}, "value"), ({"clip_norm": 1e-4}, "norm")])
def test_gradients_are_clipped(changes: dict[str, Any], limited: str) -> None:
    """The first moment after one step is a tenth of the clipped gradient."""
    train = replace(TRAIN, steps_per_call=1, **{"clip_norm": 0.0, **changes})
    engine = engine_of(train)
    with pytest.raises(loop.Stopped):
        trained(engine, train, last_step=1)
    gradients = [10 * value for name, value in engine.state().items() if name.endswith("/m")]
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
