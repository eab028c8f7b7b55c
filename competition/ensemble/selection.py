"""The choice among candidates: the simplest, unless another is better by more than one standard error."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from competition.ensemble.bootstrap import paired
from competition.ensemble.chain import Name
from competition.ensemble.metrics import Metric
from competition.ensemble.significance import Difference


@dataclass(frozen=True, slots=True)
class HonestSettings:
    resamples: int  # bootstrap
    seed: int
    blocks: int  # folds are merged into at most this many blocks for cross-fitting


def choice(
    outputs: Mapping[Name, np.ndarray], labels: np.ndarray, metric: Metric, classes: int, honest: HonestSettings
) -> Name:
    """The last of the candidates that beats the first, the simplest, by more than a standard error; it where none does.

    outputs: candidate -> (N,) labels or (N, C) probabilities, cross-fitted. The last is replaced by an earlier one with
    the same output, or one that beats it by more than a standard error: the best score among near-equals is luck.
    Calibration, method and rule are judged together: two gains within their noise can be out of it in sum, and a choice
    in steps would keep neither (benchmarks/simulation.py).
    """

    def over(old: Name, new: Name) -> Difference:
        return paired(labels, outputs[old], outputs[new], metric, classes, honest.resamples, honest.seed)

    first, *others = outputs
    better = [name for name in others if over(first, name).is_better]
    chosen = better[-1] if better else first
    for name in reversed(better[:-1]):
        gain = over(chosen, name)
        if gain.is_better or not (gain.changed or gain.value):
            chosen = name
    return chosen
