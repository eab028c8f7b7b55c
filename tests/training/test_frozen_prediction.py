"""On a CPU, prediction freezes the weights to constants where that pays; the probabilities stay the same."""

from dataclasses import replace

import numpy as np
import pytest
from small_engines import SIDE, TRAIN, engine_of, held_out, trained

from competition.training.engine import collect_probabilities
from competition.training.predictor_tensorflow import FREEZE_FROM

MANY = FREEZE_FROM // SIDE**2  # image-views


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_frozen_network_gives_the_same_probabilities_until_its_weights_change(ema: float) -> None:
    train = replace(TRAIN, ema=ema)
    engine = engine_of(train)
    trained(engine, train)
    plain, state = held_out(engine), engine.state()
    engine.prepare_prediction(MANY, SIDE)
    assert engine.predictor.frozen is not None
    frozen = held_out(engine)
    np.testing.assert_allclose(frozen, plain, rtol=0, atol=1e-5)
    assert (frozen.argmax(1) == plain.argmax(1)).all() and not np.array_equal(plain, 0 * plain)
    for name, value in engine.state().items():
        np.testing.assert_array_equal(value, state[name], err_msg=name)
    engine.reset(1)
    other = held_out(engine)
    assert np.abs(other - plain).max() > 1e-3
    engine.prepare_prediction(MANY, SIDE)
    trained(engine, train)
    np.testing.assert_allclose(held_out(engine), plain, rtol=0, atol=1e-6)


def test_few_image_views_and_several_devices_use_the_variables() -> None:
    engine = engine_of(TRAIN)
    engine.prepare_prediction(MANY - 1, SIDE)
    assert engine.predictor.frozen is None
    several = engine_of(TRAIN, 2)
    several.prepare_prediction(MANY, SIDE)
    assert several.predictor.frozen is None


def test_a_batch_is_dispatched_before_the_one_before_it_is_fetched() -> None:
    log: list[str] = []

    def dispatch(images: np.ndarray) -> int:
        log.append(f"dispatch {images[0]}")
        return int(images[0])

    def fetch(result: int) -> np.ndarray:
        log.append(f"fetch {result}")
        return np.full((2, 1, 1), result, np.float32)

    batches = ((np.array(rows), np.full(2, n)) for n, rows in enumerate([[5, 6], [7, 8], [9, -1]]))
    probs = collect_probabilities(batches, np.array([9, 5, 6, 7, 8]), dispatch, fetch)
    assert log == ["dispatch 0", "dispatch 1", "fetch 0", "dispatch 2", "fetch 1", "fetch 2"]
    assert probs[:, 0, 0].tolist() == [2, 0, 0, 1, 1]
