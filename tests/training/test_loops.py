"""The training step: averages, freezing, clipping, losses, learning rates, XLA and loss scaling, and the errors it raises."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from small_engines import SIDE, TRAIN, engine_of, held_out, network, trained

from competition.training import optimizer
from competition.training.device import Device, resolved_precision
from competition.training.engine import LOSS_SCALE, CompiledIn
from competition.training.engines import make_engine
from competition.training.optimizer import warmup_cosine
from competition.training.trainer import Stopped


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


@pytest.mark.parametrize("limited", ["clip_value", "clip_norm"])
def test_gradients_are_clipped(limited: str) -> None:
    """The first moment after one step is a tenth of the clipped gradient."""
    train = replace(TRAIN, steps_per_call=1, **{"clip_norm": 0.0, limited: 1e-4})
    engine = engine_of(train)
    with pytest.raises(Stopped):
        trained(engine, train, last_step=1)
    gradients = np.concatenate([10 * v.ravel() for name, v in engine.state().items() if name.endswith("/m")])
    size = np.abs(gradients).max() if limited == "clip_value" else np.linalg.norm(gradients)
    assert size == pytest.approx(1e-4, rel=1e-3)


def test_a_gradient_of_a_frozen_variable_whose_square_overflows_leaves_the_other_steps_alone() -> None:
    layout, ones = optimizer.FlatVector(((2,), (3,)), ((0.0, False), (1.0, True))), tf.ones(5)
    rows = optimizer.step_table(np.full(1, 0.01), 0, replace(TRAIN, freeze_epochs=1, clip_norm=1.0), 4, layout.groups)
    scalars = optimizer.unpack_row(tf.constant(rows[0]))
    variables, moments = [tf.ones(2), tf.ones(3)], (tf.zeros(5), tf.zeros(5))
    expected, _, _ = optimizer.adamw_step(layout, ones, variables, moments, None, scalars)
    overflowing = tf.constant([2e19, 1, 1, 1, 1])
    change, (_, second_moment), _ = optimizer.adamw_step(layout, overflowing, variables, moments, None, scalars)
    np.testing.assert_array_equal(change, expected)
    assert np.isfinite(second_moment).all()


def test_a_training_writes_no_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder := tmp_path_factory.mktemp("temporary")))
        trained(engine_of(TRAIN), TRAIN)
    assert not list(folder.iterdir())


def test_weights_of_another_model_are_an_error() -> None:
    with pytest.raises(ValueError, match="differ"):
        engine_of(TRAIN).load_weights({"model/0000/nothing/kernel": np.zeros(3, np.float32)})


@pytest.mark.parametrize(("warmup", "rising"), [(0.1, 10), (0.0, 0), (1.0, 100)])
def test_the_rate_rises_linearly_to_the_peak_and_falls_as_half_a_cosine_above_0(warmup: float, rising: int) -> None:
    rates = warmup_cosine(1.0, 100, warmup)
    falling = 100 - rising
    expected = 0.5 * (1 + np.cos(np.pi * np.arange(1, falling + 1) / (falling + 1)))
    np.testing.assert_allclose(rates, [*(np.arange(1, rising + 1) / max(rising, 1)), *expected], atol=1e-6)
    assert rates.dtype == np.float32 and (rates > 0).all() and warmup_cosine(0.5, 1, warmup).shape == (1,)


# What the TensorFlow engine does on a GPU, as far as a CPU can run it.
GPU = Device("gpu", 1, tf.distribute.get_strategy(), "a CPU that is treated as a GPU", "tensorflow", (8, 0))


def test_a_step_compiled_by_xla_with_a_scaled_loss_trains_the_same_model_and_an_overflow_leaves_the_step_out() -> None:
    train = replace(TRAIN, ema=0.9, accumulate=2)
    compiled_in = CompiledIn(train.batch, 8, train.accumulate, keep_average=True, scale_loss=True)
    compiled, plain = make_engine(lambda: network(True, train.dropout), GPU, compiled_in), engine_of(train)
    histories = [trained(engine, train) for engine in (compiled, plain)]
    np.testing.assert_allclose([e.loss for e in histories[0]], [e.loss for e in histories[1]], rtol=1e-4)
    expected, state = plain.state(), compiled.state()
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value, rtol=0, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(held_out(compiled), held_out(plain), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(state[LOSS_SCALE], [2.0**15, 8])  # eight steps without an overflow
    compiled.load({**state, LOSS_SCALE: np.array([np.inf, 8], np.float32)})  # every gradient becomes infinite
    batch = (np.zeros((TRAIN.batch, SIDE, SIDE, 3), np.uint8), np.eye(3, dtype=np.float32)[np.arange(TRAIN.batch) % 3])
    batches = compiled.distributed(tf.data.Dataset.from_tensors((*batch, np.ones(TRAIN.batch, np.float32))).repeat())
    compiled.take_steps(batches, np.array([0.1]), 8, train, 4)
    after = compiled.state()
    changed = {name for name in state if not np.array_equal(after[name], state[name])}
    assert all("moving" in name or "average/" in name or name == LOSS_SCALE for name in changed), changed
    assert after[LOSS_SCALE][1] == 0


def test_the_scale_is_halved_after_an_overflow_and_doubled_after_many_steps_without() -> None:
    def following(scale: float, steps: int, is_finite: bool) -> list[float]:
        return np.asarray(optimizer.next_loss_scale(np.array([scale, steps], np.float32), is_finite)).tolist()

    assert following(1024, 7, True) == [1024, 8]
    assert following(1024, optimizer.STEPS_PER_DOUBLING - 1, True) == [2048, 0]
    assert following(2.0**24, optimizer.STEPS_PER_DOUBLING - 1, True) == [2.0**24, 0]
    assert following(1024, 7, False) == [512, 0] and following(1, 7, False) == [1, 0]


def test_the_precision_is_the_fastest_that_the_device_computes_in() -> None:
    for kind, capability, precision in (
        ("cpu", (0, 0), "float32"),
        ("tpu", (0, 0), "bfloat16"),
        ("gpu", (8, 0), "bfloat16"),  # A100, as H100
        ("gpu", (7, 5), "float16"),  # T4
        ("gpu", (6, 0), "float32"),  # P100
        ("gpu", (0, 0), "float32"),
    ):
        assert resolved_precision("auto", replace(GPU, kind=kind, capability=capability)) == precision
