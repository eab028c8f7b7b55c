"""What the TensorFlow engine does on a GPU, as far as a CPU can run it: XLA-compiled steps, float16 with loss scaling."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from small_engines import SIDE, TRAIN, engine_of, held_out, network, trained

from competition.training.device import Device, resolved_precision
from competition.training.engine import LOSS_SCALE, CompiledIn
from competition.training.engines import make_engine
from competition.training.optimizer import STEPS_PER_DOUBLING, next_loss_scale, unscaled

GPU = Device("gpu", 1, tf.distribute.get_strategy(), "a CPU that is treated as a GPU", "tensorflow", (8, 0))


def gpu_engine(scale_loss: bool = False, **changes: object):
    train = replace(TRAIN, **changes)
    compiled_in = CompiledIn(train.batch, 8, train.accumulate, train.ema > 0, scale_loss=scale_loss)
    return make_engine(lambda: network(True, train.dropout), GPU, compiled_in)


def test_a_step_compiled_by_xla_trains_the_same_model() -> None:
    compiled, plain = gpu_engine(ema=0.9, accumulate=2), engine_of(replace(TRAIN, ema=0.9, accumulate=2))
    histories = [trained(engine, replace(TRAIN, ema=0.9, accumulate=2)) for engine in (compiled, plain)]
    np.testing.assert_allclose([e.loss for e in histories[0]], [e.loss for e in histories[1]], rtol=1e-4)
    expected = plain.state()
    for name, value in compiled.state().items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(held_out(compiled), held_out(plain), rtol=0, atol=1e-4)


def test_a_scaled_loss_gives_the_same_model_and_an_overflow_leaves_the_step_out() -> None:
    scaled, plain = gpu_engine(scale_loss=True), engine_of(TRAIN)
    trained(scaled, TRAIN)
    trained(plain, TRAIN)
    expected, state = plain.state(), scaled.state()
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value, rtol=0, atol=1e-4, err_msg=name)
    np.testing.assert_array_equal(state[LOSS_SCALE], [2.0**15, 8])  # eight steps without an overflow
    scaled.load({**state, LOSS_SCALE: np.array([np.inf, 8], np.float32)})  # every gradient becomes infinite
    batch = (np.zeros((TRAIN.batch, SIDE, SIDE, 3), np.uint8), np.eye(3, dtype=np.float32)[np.arange(TRAIN.batch) % 3])
    batches = scaled.distributed(tf.data.Dataset.from_tensors((*batch, np.ones(TRAIN.batch, np.float32))).repeat())
    scaled.train(batches, np.array([0.1]), 8, TRAIN, 4)
    after = scaled.state()
    unchanged = [name for name in state if name != LOSS_SCALE and "moving" not in name]
    assert all(np.array_equal(after[name], state[name]) for name in unchanged)
    assert after[LOSS_SCALE][1] == 0


def test_the_scale_is_halved_after_an_overflow_and_doubled_after_many_steps_without() -> None:
    def following(scale: float, steps: int, is_finite: bool) -> list[float]:
        return np.asarray(next_loss_scale(np.array([scale, steps], np.float32), is_finite)).tolist()

    assert following(1024, 7, True) == [1024, 8]
    assert following(1024, STEPS_PER_DOUBLING - 1, True) == [2048, 0]
    assert following(2.0**24, STEPS_PER_DOUBLING - 1, True) == [2.0**24, 0]
    assert following(1024, 7, False) == [512, 0] and following(1, 7, False) == [1, 0]
    scaling = np.array([4, 0], np.float32)
    gradient, is_finite = unscaled(np.array([8.0, -2.0], np.float32), scaling)
    assert np.asarray(gradient).tolist() == [2.0, -0.5] and bool(is_finite)
    gradient, is_finite = unscaled(np.array([8.0, np.inf], np.float32), scaling)
    assert np.asarray(gradient).tolist() == [0.0, 0.0] and not bool(is_finite)


@pytest.mark.parametrize(
    ("kind", "capability", "precision"),
    [
        ("cpu", (0, 0), "float32"),
        ("tpu", (0, 0), "bfloat16"),
        ("gpu", (9, 0), "bfloat16"),  # H100
        ("gpu", (8, 0), "bfloat16"),  # A100
        ("gpu", (7, 5), "float16"),  # T4
        ("gpu", (6, 0), "float32"),  # P100
        ("gpu", (0, 0), "float32"),
    ],
)
def test_the_precision_is_the_fastest_that_the_device_computes_in(kind, capability, precision) -> None:
    assert resolved_precision("auto", replace(GPU, kind=kind, capability=capability)) == precision
