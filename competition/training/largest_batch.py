"""The largest training batch that fits the memory of the device, found by training steps on noise."""

from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from competition.config.errors import UserError, counted
from competition.config.params import Member
from competition.prepare.targets import SINGLE, Targets
from competition.training.device import Device
from competition.training.fault_tolerance import is_out_of_memory
from competition.training.loop import step_values


def largest_that_fits(most: int, grain: int, fits: Callable[[int], bool]) -> int:
    """The largest multiple of `grain` below `most` that fits, by bisection; 0 if not even `grain` does."""
    low, high = 0, -(-most // grain)  # low * grain fits, high * grain does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * grain) else (low, middle)
    return low * grain


def step_fits(member: Member, classes: int, device: Device, batch: int, targets: Targets = SINGLE) -> bool:
    """Build the member and train one step with a batch of noise. Returns False if that exhausts the memory."""
    from competition.training.trainer import engine_of

    keras.utils.clear_session()
    size, train = member.image_size, replace(member.train, batch=batch, accumulate=1)
    images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3)).astype(np.uint8)
    try:
        engine = engine_of(replace(member.without_pretrained_weights, train=train), classes, batch, device, targets)
        batch_of_noise = (images, np.zeros((batch, classes), np.float32), np.ones(batch, np.float32))
        batches = engine.distributed(tf.data.Dataset.from_tensors(batch_of_noise).repeat())
        engine.train(batches, np.zeros(1), 0, step_values(train, 1))
    except Exception as error:
        if is_out_of_memory(error):
            return False
        raise
    return True


def too_large(name: str, member: Member, replicas: int, fits: Callable[[int], bool]) -> UserError:
    """The error for a batch that does not fit, with the largest that does and how to set it.

    fits: whether a training step with a global batch of this size fits.
    """
    batch, parts = member.train.batch, member.train.accumulate
    largest = largest_that_fits(-(-batch // parts), replicas, fits)
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
