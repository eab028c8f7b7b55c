"""The time of training on several machines, for `make plan MACHINES=`: an estimate, without a cluster."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from competition.preflight.planning import HOUR


@dataclass(frozen=True)
class Failures:
    """How machines fail, and what survives."""

    per_hour: float  # of each machine
    replace_seconds: float  # until another machine takes the place
    checkpoint_seconds: float  # of work between two checkpoints that other machines reach


@dataclass(frozen=True)
class Estimate:
    seconds: float  # until the last fold model is trained
    machine_seconds: float  # of all machines until then
    starting_seconds: float  # of them that processes need to start


NO_FAILURES = Failures(0.0, 0.0, 0.0)


def lower_bound(fold_models: Sequence[float], machines: int) -> float:
    """Seconds that no schedule of one fold model per machine at a time can beat: no starts, no failures, no gaps."""
    return max(sum(fold_models) / machines, max(fold_models))


def estimate_training(
    fold_models: Sequence[float], machines: int, start_seconds: float, failures: Failures = NO_FAILURES
) -> Estimate:
    """Give the longest fold models first, each to the machine that is free first.

    fold_models: seconds of each.  start_seconds: of the process that each fold model gets.
    A failure costs half of the work between two checkpoints on average, another machine and another start.
    """
    loss = failures.checkpoint_seconds / 2 + failures.replace_seconds + start_seconds
    slowdown = 1 + failures.per_hour / HOUR * loss
    free = [0.0] * machines
    for seconds in sorted(fold_models, reverse=True):
        heapq.heapreplace(free, free[0] + (seconds + start_seconds) * slowdown)
    return Estimate(max(free), max(free) * machines, start_seconds * len(fold_models))
