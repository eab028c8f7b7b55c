"""Memory that training takes: main memory against what is left of it, and the largest batch that fits the device."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from competition.config.errors import UserError, counted
from competition.config.params import Member
from competition.prepare.targets import SINGLE, Targets
from competition.training.device import Device
from competition.training.fault_tolerance import OUT_OF_MEMORY, is_caused_by

PROCESS = 500_000_000  # bytes of Python, TensorFlow and a small network
# Copies of a training batch in float32, 4 bytes per value: as it is augmented, scaled and read by the first layer. Measured: 1.7 GB for
# batches of 128 images of 512 px, 3 of them ahead (`python -m benchmarks.dress_rehearsal flowers`).
FLOAT_COPIES = 3
LIMITS = (  # of a container: its limit, and the file with what its processes have taken
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.stat", "anon"),
    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.stat", "total_rss"),
)


def training_bytes(member: Member, batches_ahead: int) -> int:
    """Bytes that training this member on a CPU takes without the network's activations; less where an accelerator computes."""
    batch = member.train.batch * member.image_size**2 * 3
    return PROCESS + batch * (batches_ahead + 1 + 4 * FLOAT_COPIES)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes of memory that are left to this process: of the machine, or less in a container with a limit; None = unknown.

    Source of the files: proc(5), cgroups(7).
    """
    left = []
    try:
        left.append(1024 * _value(root / "proc/meminfo", "MemAvailable:"))
    except (OSError, ValueError):
        return None
    for limit, statistics, key in LIMITS:
        try:
            left.append(int((root / limit).read_text()) - _value(root / statistics, key))
        except (OSError, ValueError):  # no such cgroup, or no limit ("max")
            continue
    return max(0, min(left))


def _value(path: Path, key: str) -> int:
    """The number after `key` in a file of lines `key number ...`."""
    values = dict(line.split()[:2] for line in path.read_text().splitlines())
    if key not in values:
        raise ValueError(f"{path} has no line {key}")
    return int(values[key])


def memory_warning(name: str, member: Member, batches_ahead: int, available: int | None) -> str:
    """One sentence if the batches alone take more than is available; "" if not, or if that is unknown."""
    needed = training_bytes(member, batches_ahead)
    if member.head is not None or available is None or needed <= available:
        return ""
    return (
        f"{name}: batches of {member.train.batch} images of {member.image_size} px take {needed / 1e9:.1f} GB of memory beside the "
        f"network, {available / 1e9:.1f} GB are available; lower train.batch or image_size"
    )


def step_fits(member: Member, classes: int, device: Device, batch: int, targets: Targets = SINGLE) -> bool:
    """Build the member and train one step with a batch of noise. Returns False if that exhausts the memory."""
    import keras
    import numpy as np
    import tensorflow as tf

    from competition.training.engines import engine_of

    keras.utils.clear_session()
    size, train = member.image_size, replace(member.train, batch=batch, accumulate=1)
    images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3)).astype(np.uint8)
    try:
        engine = engine_of(replace(member.without_pretrained_weights, train=train), classes, batch, device, targets)
        batch_of_noise = (images, np.zeros((batch, classes), np.float32), np.ones(batch, np.float32))
        batches = engine.distributed(tf.data.Dataset.from_tensors(batch_of_noise).repeat())
        engine.train(batches, np.zeros(1), 0, train, 1)
    except Exception as error:
        if is_caused_by(error, OUT_OF_MEMORY):
            return False
        raise
    return True


def too_large(name: str, member: Member, replicas: int, fits: Callable[[int], bool]) -> UserError:
    """The error for a batch that does not fit, with the largest that does and how to set it.

    fits: whether a training step with a global batch of this size fits.
    """
    batch, parts = member.train.batch, member.train.accumulate
    per_replica = range(1, -(-batch // (parts * replicas)))  # smaller than what did not fit
    largest = replicas * bisect_left(per_replica, True, key=lambda images: not fits(replicas * images))
    subject = f"{name}: a batch of {counted(batch, 'image')} of {member.image_size} px"
    subject += f" in {parts} micro-batches" if parts > 1 else ""
    if not largest:
        return UserError(
            f"{subject} needs more memory than the device has, and so does the smallest batch; lower the member's image_size, "
            "choose a smaller architecture, or set train.precision: bfloat16"
        )
    accumulate = -(-batch // largest)
    return UserError(
        f"{subject} needs more memory than the device has; the largest that fits is {largest}: set train.accumulate: "
        f"{accumulate}, which keeps the batch and takes it in {accumulate} parts, or train.batch: {largest}"
    )
