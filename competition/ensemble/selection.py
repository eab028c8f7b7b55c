"""The blend rule: which candidate (calibration, blend method, decision rule) becomes the chain.

To change how the winner is chosen, change `select_candidate`. To add a blend method, add it to `blend.BLENDS` and
`blend.fit_blend`; to add a
decision rule, to `decision.RULES`. `nested` produces the cross-fitted outputs that are compared here.
"""

from collections.abc import Mapping

import numpy as np

from competition.config.params import Honest
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.chain import CandidateKey
from competition.ensemble.metrics import Metric
from competition.ensemble.significance import Difference


def select_candidate(
    outputs: Mapping[CandidateKey, np.ndarray], labels: np.ndarray, metric: Metric, classes: int, honest: Honest
) -> CandidateKey:
    """Select the simplest candidate unless another one has a significant gain over it.

    outputs: candidate -> (N,) labels or (N, C) probabilities, cross-fitted, the simplest candidate first.

    1. Keep the candidates with a significant gain over the first. If there is none, select the first.
    2. Start with the last of them. Going backwards, replace it by a candidate whose output is identical or whose score
       is higher by more than one standard error: the best score among near-equals is luck.

    Calibration, method and rule are compared jointly: two gains within noise can be significant together, and a
    stepwise choice would reject both. In step 1 a gain of one standard error is not enough: among a dozen candidates
    one has it by luck in a third to half of the simulated competitions where none is better, and it then loses on fresh
    rows, because parameters fitted on the rows cost accuracy (benchmarks/simulation.py).
    """

    evaluation = Evaluation(metric, classes, honest.resamples, honest.seed)

    def difference(before: CandidateKey, after: CandidateKey) -> Difference:
        return paired(labels, outputs[before], outputs[after], evaluation)

    simplest, *others = outputs
    gains = {key: difference(simplest, key) for key in others}
    better = [key for key, gain in gains.items() if gain.value > 0 and gain.is_significant]
    selected = better[-1] if better else simplest
    for key in reversed(better[:-1]):
        gain = difference(selected, key)
        is_identical = not (gain.changed or gain.value)
        if gain.is_better or is_identical:
            selected = key
    return selected
