"""The arithmetic of one training step in keras.ops, shared by both engines, and the learning rates of all steps.

Gradients, moments and averages are flat vectors of all trainable variables, one after the other: an update per variable
takes TensorFlow seconds to trace and optimise, and JAX milliseconds per step to hand hundreds of arrays to the devices.

Every value that may change between steps, folds or trials is passed in one row of float32 per step, so that none is
compiled in. Bias corrections and warm-ups are computed on the host in float64, because 1 - 0.999**1 loses most of its
digits in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import NamedTuple

import numpy as np
from keras import ops

from competition.config.params import Train
from competition.training.backend import Tensor

Moments = tuple[Tensor, Tensor]  # first and second, (P,) each
BETA_1, BETA_2 = 0.9, 0.999  # the defaults of AdamW in Keras
NO_LIMIT = float(np.finfo(np.float32).max)  # infinity would trigger the numeric checks of DEBUG=1


class StepScalars(NamedTuple):
    """One row of the step table. All fields are scalars but the last."""

    learning_rate: Tensor
    bias_correction: Tensor  # sqrt(1 - beta_2^t) / (1 - beta_1^t)
    average_decay: Tensor  # decay of the moving average of the weights at this step
    weight_decay: Tensor
    clip_norm: Tensor
    clip_value: Tensor
    focal_gamma: Tensor
    epsilon: Tensor
    rate_factors: Tensor  # (T,) learning rate of each trainable variable divided by `learning_rate`; 0 = frozen


def step_table(
    rates: np.ndarray, first: int, train: Train, per_epoch: int, groups: Sequence[tuple[float, bool]]
) -> np.ndarray:
    """The rows of steps first .. first + n - 1, (n, 8 + T) float32, in the order of `StepScalars`.

    rates: (n,) learning rates.  per_epoch: steps per epoch.  groups: see engine.layer_groups; the last layer is trained while
    the rest is frozen.
    The decay of the average grows with the step, min(ema, (1 + t) / (10 + t)), so that short runs forget their start.
    """
    steps = np.arange(first, first + len(rates), dtype=np.float64)
    bias_correction = np.sqrt(1 - BETA_2 ** (steps + 1)) / (1 - BETA_1 ** (steps + 1))
    average_decay = np.minimum(train.ema, (1 + steps) / (10 + steps))
    limits = [train.clip_norm or NO_LIMIT, train.clip_value or NO_LIMIT]
    constants = np.tile([train.weight_decay, *limits, train.focal_gamma, train.epsilon], (len(rates), 1))
    depths, is_head = np.array(groups).T
    is_trained = (is_head == 1) | (steps[:, None] >= train.freeze_epochs * per_epoch)
    rate_factors = np.where(is_trained, train.layer_decay ** (1 - depths), 0.0)
    return np.column_stack([rates, bias_correction, average_decay, constants, rate_factors]).astype(np.float32)


def unpack_row(row: Tensor) -> StepScalars:
    """(8 + T,) row of the step table -> its named fields."""
    *scalars, last = StepScalars._fields
    return StepScalars(**{name: row[n] for n, name in enumerate(scalars)}, **{last: row[len(scalars) :]})


@dataclass(frozen=True)
class FlatVector:
    """Arrays of these shapes, one after the other in a vector (P,), each in row-major order."""

    shapes: tuple[tuple[int, ...], ...]
    # See engine.layer_groups; adjacent arrays of one group get the same value from `spread`.
    groups: tuple[tuple[float, bool], ...] = ()

    @property
    def sizes(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    def flatten(self, arrays: Sequence[Tensor]) -> Tensor:
        """(P,) vector of the arrays."""
        return ops.concatenate([ops.reshape(array, (-1,)) for array in arrays]) if arrays else ops.zeros((0,))

    def split(self, vector: Tensor) -> list[Tensor]:
        """The arrays in a vector (P,) of NumPy, as views of it, or of JAX."""
        ends = np.cumsum(self.sizes, dtype=int).tolist()
        return [vector[e - n : e].reshape(s) for s, n, e in zip(self.shapes, self.sizes, ends, strict=True)]

    def spread(self, values: Tensor) -> Tensor:
        """(P,) vector that holds values[n] at the entries of array n.  values: one for each array."""
        entries, numbered = ops.unstack(values), enumerate(zip(self.groups, self.sizes, strict=True))
        runs = [list(run) for _, run in groupby(numbered, lambda entry: entry[1][0])]
        sizes = [(run[0][0], sum(size for _, (_, size) in run)) for run in runs]
        return ops.concatenate([ops.broadcast_to(entries[first], (size,)) for first, size in sizes])


def losses(targets: Tensor, logits: Tensor, weights: Tensor, gamma: Tensor) -> Tensor:
    """(B,) weighted focal loss of soft targets (Lin et al. 2017); with gamma 0 exactly the cross-entropy.

    targets, logits: (B, C).  weights: (B,).
    """
    log_probs = ops.log_softmax(logits, axis=-1)
    # Clipped away from 0, where the derivative of a power is infinite.
    complement = ops.clip(1.0 - ops.exp(log_probs), 1e-7, 1.0)
    return -weights * ops.sum(targets * ops.power(complement, gamma) * log_probs, axis=-1)


def label_losses(targets: Tensor, logits: Tensor, weights: Tensor, gamma: Tensor) -> Tensor:
    """(B,) weighted focal loss of independent labels, the mean over them; with gamma 0 the binary cross-entropy.

    targets, logits: (B, C).  weights: (B,).
    """
    log_yes, log_no = ops.log_sigmoid(logits), ops.log_sigmoid(-logits)
    no, yes = (ops.clip(ops.exp(value), 1e-7, 1.0) for value in (log_no, log_yes))
    terms = targets * ops.power(no, gamma) * log_yes + (1.0 - targets) * ops.power(yes, gamma) * log_no
    return -weights * ops.mean(terms, axis=-1)


LOSSES = {  # by Metric.target
    "single": losses,
    "multi": label_losses,
    # Squared errors of values (B, 1).
    "regression": lambda targets, values, weights, gamma: weights * ops.sum(ops.square(values - targets), axis=-1),
}
FIRST_LOSS_SCALE = (2.0**15, 0.0)  # scale, steps since it was changed
LARGEST_LOSS_SCALE, STEPS_PER_DOUBLING = 2.0**24, 2000


def next_loss_scale(scaling: Tensor, is_finite: Tensor) -> Tensor:
    """(2,) the scale after a step: halved after an overflow, doubled after STEPS_PER_DOUBLING steps without one.

    Source: Micikevicius et al. 2018. Without a scale, gradients below 6e-8 are 0 in float16.
    """
    scale, steps = scaling[0], scaling[1] + 1
    is_doubled = steps >= STEPS_PER_DOUBLING
    grown = ops.where(is_doubled, ops.minimum(2 * scale, LARGEST_LOSS_SCALE), scale)
    counted = ops.where(is_doubled, 0.0, steps)
    return ops.stack([ops.where(is_finite, grown, ops.maximum(scale / 2, 1.0)), ops.where(is_finite, counted, 0.0)])


def adamw_step(
    layout: FlatVector,
    gradient: Tensor,
    variables: list[Tensor],
    moments: Moments,
    scaling: Tensor,
    scalars: StepScalars,
) -> tuple[Tensor, Moments, Tensor]:
    """(decrease of the variables, moments, scaling) in one step (Loshchilov & Hutter 2019).

    gradient, decrease and both moments: (P,) in the order of `layout`; the gradient is summed over all replicas, and
    multiplied by scaling[0].  variables: the arrays of `layout`.  scaling: (2,), or None if the loss is not scaled.
    The moments of a frozen variable are updated as well, so that its first steps after freezing are not too large.
    """
    if scaling is not None:
        is_finite = ops.all(ops.isfinite(gradient))
        gradient = ops.where(is_finite, gradient / scaling[0], 0.0)
    factors = layout.spread(scalars.rate_factors)
    # Clipped by value, then by the global norm over the variables that are not frozen.
    gradient = ops.clip(gradient, -scalars.clip_value, scalars.clip_value)
    # Selected before they are squared: the square of a frozen entry above 1.8e19 is infinite, and infinity * 0 is NaN.
    norm = ops.sqrt(ops.sum(ops.square(ops.where(factors > 0, gradient, 0.0))))
    gradient = gradient * ops.minimum(1.0, scalars.clip_norm / ops.maximum(norm, 1e-12))
    m, v = moments
    new_m = m + (gradient - m) * (1 - BETA_1)
    new_v = v + (ops.square(gradient) - v) * (1 - BETA_2)
    step = scalars.bias_correction * new_m / (ops.sqrt(new_v) + scalars.epsilon)
    # Weight decay does not apply to biases, scales and offsets.
    decayed = layout.flatten([x if len(x.shape) > 1 else ops.zeros_like(x) for x in variables])
    change = scalars.learning_rate * factors * (step + scalars.weight_decay * decayed)
    if scaling is None:
        return change, (new_m, new_v), None
    # A step whose gradient overflowed is left out.
    change, new_m, new_v = (ops.where(is_finite, new, old) for new, old in ((change, 0.0), (new_m, m), (new_v, v)))
    return change, (new_m, new_v), next_loss_scale(scaling, is_finite)


def update_average(average: Tensor, x: Tensor, scalars: StepScalars) -> Tensor:
    """The exponential moving average of the weights, batch norm statistics included (Polyak & Juditsky 1992)."""
    return average + (x - average) * (1.0 - scalars.average_decay)


def warmup_cosine(peak: float, steps: int, warmup: float) -> np.ndarray:
    """Linear warm-up over the fraction `warmup` of the steps, then cosine decay to 0 (Loshchilov & Hutter 2017, SGDR).

    Returns (steps,) float32. The last rate is above 0, so every step has an effect.
    """
    warmup_steps = round(steps * warmup)
    rising = peak * np.arange(1, warmup_steps + 1) / max(warmup_steps, 1)
    decay_steps = steps - warmup_steps
    falling = peak * 0.5 * (1 + np.cos(np.pi * np.arange(1, decay_steps + 1) / (max(decay_steps, 1) + 1)))
    return np.concatenate([rising, falling]).astype(np.float32)
