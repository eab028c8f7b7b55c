"""Create the engine of a member on the selected backend. Only this module knows both."""

from collections.abc import Callable
from dataclasses import replace

import keras

from competition.config.params import Member
from competition.prepare.targets import SINGLE, Targets
from competition.training.device import Device, prediction_batch_size, resolved_precision, round_up_batch
from competition.training.engine import CompiledIn, Engine
from competition.training.model import build


def engine_of(member: Member, classes: int, predict_batch: int, device: Device, targets: Targets = SINGLE) -> Engine:
    """The compiled engine of a member, with its precision chosen and its batches rounded up for the device."""
    train = replace(member.train, precision=resolved_precision(member.train.precision, device))
    return make_engine(
        lambda: build(replace(member, train=train), classes, targets.kind),
        round_up_batch(train.batch, device.replicas * train.accumulate),
        prediction_batch_size(predict_batch, member.image_size, device),
        device,
        CompiledIn(train.accumulate, train.ema > 0, targets.kind, train.precision == "float16"),
    )


def make_engine(
    network: Callable[[], keras.Model], batch: int, predict_batch: int, device: Device, compiled_in: CompiledIn
) -> Engine:
    """The engine of the device's backend.

    batch: a multiple of replicas x accumulate.  predict_batch: a multiple of the replicas.
    """
    if device.backend == "jax":
        from competition.training.engine_jax import JaxEngine

        return JaxEngine(network, batch, predict_batch, device, compiled_in)
    from competition.training.engine_tensorflow import TensorFlowEngine

    return TensorFlowEngine(network, batch, predict_batch, device, compiled_in)
