"""The choice among candidates: the simplest, unless another is better by more than chance explains."""

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


def select_candidate(
    outputs: Mapping[Name, np.ndarray], labels: np.ndarray, metric: Metric, classes: int, honest: HonestSettings
) -> Name:
    """The last of the candidates with a significant gain over the first, the simplest; the first where none has one.

    outputs: candidate -> (N,) labels or (N, C) probabilities, cross-fitted. The last is replaced by an earlier one with
    the same output, or one that beats it by more than a standard error: the best score among near-equals is luck.
    Calibration, method and rule are judged together: two gains within their noise can be out of it in sum, and a choice
    in steps would keep neither.
    A gain of one standard error over the first is not enough. Among a dozen candidates one has it by luck in a third to
    half of the simulated competitions where none is better, and on fresh rows it then loses: what is fitted on the rows
    pays for the fit (benchmarks/simulation.py).
    """

    def over(old: Name, new: Name) -> Difference:
        return paired(labels, outputs[old], outputs[new], metric, classes, honest.resamples, honest.seed)

    first, *others = outputs
    better = [name for name in others if (gain := over(first, name)).value > 0 and gain.is_significant]
    chosen = better[-1] if better else first
    for name in reversed(better[:-1]):
        gain = over(chosen, name)
        if gain.is_better or not (gain.changed or gain.value):
            chosen = name
    return chosen
