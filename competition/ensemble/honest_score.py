"""Fit the chain for the test rows and compute its honest score.

A chain (chain.Chain) is everything after training: views, blend weights, decision rule. A candidate is one combination of
blend method and rule. Folds are merged into blocks; for each block, chain and candidate
are chosen again without it and scored on it (nested cross-validation; Varma & Simon 2006). The candidate is selected
by cross-fitting inside the remaining blocks (`nested_cross_fit`). Rows whose labels chose hyperparameters are
excluded from every score.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from competition.config.params import Honest
from competition.ensemble.bootstrap import Score
from competition.ensemble.chain import Chain
from competition.ensemble.compare import seed_noise_of_difference
from competition.ensemble.decision import rules_for
from competition.ensemble.nested_cross_fit import CrossFitted, NestedCrossFit, OofRows, Progress
from competition.ensemble.settings import ChainSettings
from competition.ensemble.significance import Difference


@dataclass(frozen=True)
class HonestResult:
    """A chain fitted on all rows, and its scores with standard errors.  Scores are greater-is-better (see Metric.display).

    Baselines have the first decision rule of the settings, fitted for them. A Difference above 0 favours the chain, or the policy.
    report.scores_json.scores_of turns it into the content of scores.json.
    """

    chain: Chain
    chosen_on: float  # score of `chain` on the rows of `scored`, on which it was fitted as well; optimistic
    honest: Score  # cross-fitted
    equal: Score  # of equal weights, cross-fitted
    over_equal: Difference  # against equal weights, both cross-fitted
    over_best: Difference  # against the member that was best on the other blocks, both cross-fitted
    default_rule: Score  # of the same blend with the metric's default rule (DEFAULT_RULES), cross-fitted
    over_default_rule: Difference  # against that, both cross-fitted
    best: Score  # each block scored with the member that is best on the other blocks
    best_members: Mapping[str, tuple[int, ...]]  # member -> folds whose baseline it is: it was best on the other blocks
    view_effects: Mapping[str, Difference]  # member -> its TTA policy against its identity view, cross-fitted
    cross_fitted: CrossFitted  # of all N rows
    scored: np.ndarray  # (N,) bool: the rows that all these scores are computed on
    is_optimistic: bool  # True if every row chose hyperparameters, so that none could be excluded


def fit_and_score_chain(
    rows: OofRows,
    settings: ChainSettings,
    honest: Honest,
    progress: Progress | None = None,
    spreads: Mapping[str, float] | None = None,
) -> HonestResult:
    """Fit the chain on all rows and score it by nested cross-fitting.

    spreads: member -> standard deviation of its score over training seeds, for members where it was measured.
    """
    metric = settings.metric
    rule = rules_for(metric, settings.decision.rules)[0]
    equal_weights, best_member = ("equal", rule), ("best", rule)
    nested = NestedCrossFit(rows, settings, honest, baselines=(equal_weights, best_member), progress=progress)
    chain, cross_fitted = nested.chain(), nested.cross_fit()
    output, outputs, gains = cross_fitted.output, {}, {}
    for baseline in (equal_weights, best_member):
        blend = nested.candidates(frozenset())[baseline].chain.blend
        # One member in all folds where rows of two of them would be ranked against each other, which favours the baseline a little.
        is_common = metric.ranks_rows and baseline == best_member
        outputs[baseline] = nested.cross_fit(baseline, blend if is_common else None).output
        weights = blend.weights
        seeds = seed_noise_of_difference(weights, chain.blend.weights, spreads or {})
        gains[baseline] = nested.difference(outputs[baseline], output, seeds)
    best_members: dict[str, tuple[int, ...]] = {}
    for block in nested.block_numbers:
        chosen_without = frozenset() if metric.ranks_rows else frozenset({block})
        weights = nested.candidates(chosen_without)[best_member].chain.blend.weights
        name = max(weights, key=lambda member: weights[member])
        held_out = sorted(int(fold) for fold in np.unique(rows.folds[nested.blocks == block]))
        best_members[name] = (*best_members.get(name, ()), *held_out)
    undecided = metric.output_of(cross_fitted.probs)
    return HonestResult(
        chain=chain,
        chosen_on=nested.score_on_fitted_rows(chain),
        honest=nested.score(output),
        equal=nested.score(outputs[equal_weights]),
        over_equal=gains[equal_weights],
        over_best=gains[best_member],
        default_rule=nested.score(undecided),
        over_default_rule=nested.difference(undecided, output),
        best=nested.score(outputs[best_member]),
        best_members=best_members,
        view_effects={member: nested.view_effect(member) for member in rows.members},
        cross_fitted=cross_fitted,
        scored=nested.scored,
        is_optimistic=nested.is_optimistic,
    )
