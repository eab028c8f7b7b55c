"""What the training runs on, found by looking, with the reason said. Import this before Keras is imported."""

import os
from dataclasses import dataclass
from typing import Any

from competition.errors import Refusal
from competition.params import DeviceParams


@dataclass(frozen=True)
class Device:
    kind: str  # tpu | gpu | cpu
    replicas: int
    strategy: Any  # tf.distribute.Strategy
    reason: str


def open_device(wanted: DeviceParams) -> Device:
    """TPU before GPUs before CPU. Raises Refusal when less is here than `require` asks for."""
    import tensorflow as tf

    found = _tpu(tf) or _gpus(tf) or _cpu(tf, wanted.logical_devices)
    order = ("cpu", "gpu", "tpu")
    if wanted.require != "any" and order.index(found.kind) < order.index(wanted.require):
        raise Refusal(
            f"device.require is {wanted.require}, but only a {found.kind} was found ({found.reason}); "
            "plug one in, or set device.require: any"
        )
    return found


def whole_batch(batch: int, replicas: int) -> int:
    """The smallest global batch that is at least `batch` and that the replicas can share equally."""
    return -(-batch // replicas) * replicas


def _tpu(tf: Any) -> Device | None:
    # TPUClusterResolver("local") succeeds on machines without any TPU: only a listed device is one.
    if not any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0")) and not os.environ.get("TPU_NAME"):
        return None
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ.get("TPU_NAME", "local"))
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError):
        return None
    cores = tf.config.list_logical_devices("TPU")
    if not cores:
        return None
    strategy = tf.distribute.TPUStrategy(resolver)
    return Device("tpu", strategy.num_replicas_in_sync, strategy, f"TensorFlow lists {len(cores)} TPU cores")


def _gpus(tf: Any) -> Device | None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if len(gpus) == 1:
        return Device("gpu", 1, tf.distribute.get_strategy(), "TensorFlow lists one GPU")
    return Device("gpu", len(gpus), tf.distribute.MirroredStrategy(), f"TensorFlow lists {len(gpus)} GPUs")


def _cpu(tf: Any, logical: int) -> Device:
    # The same rows give the same bits on CPU, so that a resumed run can be compared with an uninterrupted one.
    tf.config.experimental.enable_op_determinism()
    cpu = tf.config.list_physical_devices("CPU")[0]
    if logical <= 1:
        return Device("cpu", 1, tf.distribute.get_strategy(), "no TPU and no GPU was found")
    parts = [tf.config.LogicalDeviceConfiguration()] * logical
    if (tf.config.get_logical_device_configuration(cpu) or []) != parts:
        try:
            tf.config.set_logical_device_configuration(cpu, parts)
        except RuntimeError:
            if len(tf.config.list_logical_devices("CPU")) < logical:
                raise
    names = [device.name for device in tf.config.list_logical_devices("CPU")[:logical]]
    # The default cross-device ops fail when strategy.run stands inside a TensorFlow loop.
    strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
    return Device("cpu", logical, strategy, f"the CPU cut into {logical} logical devices (device.logical_devices)")
