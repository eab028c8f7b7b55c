"""The arithmetic of one training step, in keras.ops: both engines run these very lines.

Every number that may change from step to step, fold to fold or trial to trial comes in one row of float32, so that no
value is compiled in. Bias corrections and warm-ups are worked out on the host in float64, because 1 - 0.999**1 has few
digits left in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops

BETA_1, BETA_2 = 0.9, 0.999  # AdamW as Keras has it
NO_LIMIT = float(np.finfo(np.float32).max)  # an infinity would set off the numeric checks of DEBUG=1


@dataclass(frozen=True)
class StepValues:
    """What may change between folds and trials without compiling again."""

    weight_decay: float
    clip_norm: float  # 0 = no limit
    clip_value: float  # 0 = no limit
    focal_gamma: float  # 0 = cross-entropy
    epsilon: float
    ema: float  # decay of the average, where the engine keeps one
    layer_decay: float  # learning rate of the first layer as a share of the last's
    freeze_steps: int  # steps at the start in which only the head learns


class StepScalars(NamedTuple):
    """One row, taken apart. All scalars but the last."""

    rate: Any
    correction: Any  # sqrt(1 - beta_2^t) / (1 - beta_1^t)
    keep: Any  # decay of the average of the weights at this step
    weight_decay: Any
    clip_norm: Any
    clip_value: Any
    focal_gamma: Any
    epsilon: Any
    shares: Any  # (T,) learning rate of each trainable variable as a share of `rate`; 0 = frozen


def step_table(rates: np.ndarray, first: int, values: StepValues, depths: np.ndarray, head: np.ndarray) -> np.ndarray:
    """(n, 8 + T) float32: the numbers of steps first .. first + n - 1.

    rates: (n,).  depths: (T,) 0 = first layer .. 1 = last.  head: (T,) bool, what learns while the rest is frozen.
    The decay of the average grows with the step, min(ema, (1 + t) / (10 + t)), so that short runs forget their start.
    """
    steps = np.arange(first, first + len(rates), dtype=np.float64)
    correction = np.sqrt(1 - BETA_2 ** (steps + 1)) / (1 - BETA_1 ** (steps + 1))
    keep = np.minimum(values.ema, (1 + steps) / (10 + steps))
    limits = [values.clip_norm or NO_LIMIT, values.clip_value or NO_LIMIT]
    fixed = [values.weight_decay, *limits, values.focal_gamma, values.epsilon]
    shares = np.where(head | (steps[:, None] >= values.freeze_steps), values.layer_decay ** (1 - depths), 0.0)
    return np.column_stack([rates, correction, keep, np.tile(fixed, (len(rates), 1)), shares]).astype(np.float32)


def unpack_row(row: Any) -> StepScalars:
    *scalars, last = StepScalars._fields
    return StepScalars(**{name: row[n] for n, name in enumerate(scalars)}, **{last: row[len(scalars) :]})


def variable_rates(now: StepScalars) -> list[Any]:
    """T scalars: the learning rate of each trainable variable."""
    return list(ops.unstack(now.rate * now.shares))


def losses(targets: Any, logits: Any, weights: Any, gamma: Any) -> Any:
    """(B,) weighted focal loss of soft targets (Lin et al. 2017); with gamma 0 the cross-entropy, to the bit.

    targets, logits: (B, C).  weights: (B,).
    """
    log_probs = ops.log_softmax(logits, axis=-1)
    doubt = ops.clip(1.0 - ops.exp(log_probs), 1e-7, 1.0)  # away from 0, where the derivative of a power is infinite
    return -weights * ops.sum(targets * ops.power(doubt, gamma) * log_probs, axis=-1)


def clip_gradients(gradients: Sequence[Any], now: StepScalars) -> list[Any]:
    """By value, then by the norm of the whole gradient of what is not frozen. Give it the sum over all replicas."""
    limited = [ops.clip(g, -now.clip_value, now.clip_value) for g in gradients]
    squares = ops.stack([ops.sum(ops.square(g)) for g in limited])
    norm = ops.sqrt(ops.sum(squares * ops.sign(now.shares)))
    scale = ops.minimum(1.0, now.clip_norm / ops.maximum(norm, 1e-12))
    return [g * scale for g in limited]


def adamw(x: Any, gradient: Any, m: Any, v: Any, rate: Any, now: StepScalars) -> tuple[Any, Any, Any]:
    """(x, m, v) after one step (Loshchilov & Hutter 2019); matrices decay, biases, scales and offsets do not.

    rate: this variable's own.
    The moments of a frozen variable are kept up to date, so that its first step after the thaw is no leap.
    """
    m = m + (gradient - m) * (1 - BETA_1)
    v = v + (ops.square(gradient) - v) * (1 - BETA_2)
    change = rate * now.correction * m / (ops.sqrt(v) + now.epsilon)
    if len(x.shape) > 1:
        change = change + rate * now.weight_decay * x
    return x - change, m, v


def update_average(average: Any, x: Any, now: StepScalars) -> Any:
    """The exponential moving average of the weights, batch norm statistics included (Polyak & Juditsky 1992)."""
    return average + (x - average) * (1.0 - now.keep)
