"""Create the engine of a member on the selected backend. Only this module knows both."""

from collections.abc import Callable
from dataclasses import replace

import keras

from competition.config.params import Member
from competition.config.plugins import Plugins
from competition.prepare.targets import SINGLE, Targets
from competition.training.device import Device, prediction_batch_size, resolved_precision, round_up_batch
from competition.training.engine import CompiledIn, Engine
from competition.training.model import build


def engine_of(
    member: Member, classes: int, predict_batch: int, device: Device, plugins: Plugins, targets: Targets = SINGLE
) -> Engine:
    """The compiled engine of a member, with its precision chosen and its batches rounded up for the device."""
    train = replace(member.train, precision=resolved_precision(member.train.precision, device))
    member = replace(member, train=train)
    compiled_in = CompiledIn(
        round_up_batch(train.batch, device.replicas * train.accumulate),
        prediction_batch_size(predict_batch, member.image_size, device),
        train.accumulate,
        train.ema > 0,
        targets.kind,
        scale_loss=train.precision == "float16",
    )
    return make_engine(lambda: build(member, classes, targets.kind, plugins), device, compiled_in)


def make_engine(network: Callable[[], keras.Model], device: Device, compiled_in: CompiledIn) -> Engine:
    """The engine of the device's backend.  network: builds the model."""
    if device.backend == "jax":
        from competition.training.engine_jax import JaxEngine

        return JaxEngine(network, device, compiled_in)
    from competition.training.engine_tensorflow import TensorFlowEngine

    return TensorFlowEngine(network, device, compiled_in)
