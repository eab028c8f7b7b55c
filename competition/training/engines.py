"""Create the engine of the selected backend. Only this module knows both."""

from collections.abc import Callable

import keras

from competition.training.device import Device
from competition.training.engine import CompiledIn, Engine


def make_engine(
    build: Callable[[], keras.Model], batch: int, predict_batch: int, device: Device, compiled_in: CompiledIn
) -> Engine:
    """The engine of the device's backend.

    batch: a multiple of replicas x accumulate.  predict_batch: a multiple of the replicas.
    Raises UserError if the backend does not support an option.
    """
    if device.backend == "jax":
        from competition.training.engine_jax import JaxEngine

        return JaxEngine(build, batch, predict_batch, device, compiled_in)
    from competition.training.engine_tensorflow import TensorFlowEngine

    return TensorFlowEngine(build, batch, predict_batch, device, compiled_in)
