"""Scores of a blend as stored in scores.json."""

import numpy as np

from competition.config.params import Params
from competition.ensemble.bootstrap import Evaluation, Score, paired, score_with_error
from competition.ensemble.expected_score import expected_scores, interval
from competition.ensemble.honest_score import HonestResult
from competition.ensemble.metrics import Metric
from competition.ensemble.rare_classes import small_class_warning
from competition.ensemble.significance import NORMAL_95
from competition.ensemble.stored_predictions import IDENTITY
from competition.ensemble.trivial import trivial_output
from competition.workspace.ensemble_inputs import EnsembleInputs


def scores_of(params: Params, honest: HonestResult, metric: Metric, inputs: EnsembleInputs) -> dict[str, object]:
    """The scores of scores.json, all computed on `honest.scored`: rows that chose hyperparameters are excluded.

    Without test images `leaderboard_band` is None. `optimistic`: every row chose hyperparameters.
    """
    classes = honest.cross_fitted.probs.shape[1]
    evaluation = Evaluation(metric, classes, params.honest.resamples, params.honest.seed)
    rows, test_rows = honest.scored, len(inputs.test_ids)
    labels, output = inputs.labels[rows], honest.cross_fitted.output[rows]
    expected = expected_scores(labels, output, evaluation, test_rows) if test_rows else ()
    answer, trivial_outputs = trivial_output(labels, metric, classes)
    trivial = score_with_error(labels, trivial_outputs, evaluation)
    members = {}
    for name, predictions in inputs.oof.items():  # by its identity view, without any fitting
        probs = predictions.view(IDENTITY, np.flatnonzero(rows))
        members[name] = score_with_error(labels, metric.output_of(probs), evaluation)
    # Not above the baseline by more than the errors of both explain; these scores have no paired difference.
    no_better = [
        name
        for name, score in members.items()
        if score.value - trivial.value <= NORMAL_95 * np.hypot(score.error, trivial.error)
    ]

    def displayed(score: Score) -> dict[str, float]:
        return {"score": metric.display(score.value), "standard_error": score.error}

    grouping = params.prepare.group_by
    return {
        "metric": metric.name,
        "grouping": f"column {params.prepare.group_column}" if grouping == "column" else grouping,
        "members": {name: displayed(score) for name, score in members.items()},
        "trivial": {"name": answer, **displayed(trivial)},
        "over_trivial": paired(labels, trivial_outputs, output, evaluation),
        "no_better_members": no_better,
        "chosen_on": metric.display(honest.chosen_on),
        "honest": metric.display(honest.honest.value),
        "standard_error": honest.honest.error,
        "honest_rows": int(rows.sum()),
        "rows": len(inputs.ids),  # with those that chose hyperparameters
        "tuned_folds": inputs.tuned_folds,
        "optimistic": honest.is_optimistic,
        "equal": displayed(honest.equal),
        "leaderboard_band": interval(expected, test_rows) if test_rows else None,
        "expected": expected,
        "small_classes": small_class_warning(labels, classes),
        "test_rows": test_rows,
        "over_equal": honest.over_equal,
        "over_best": honest.over_best,
        "default_rule": displayed(honest.default_rule),
        "over_default_rule": honest.over_default_rule,
        "best": displayed(honest.best),
        "best_members": honest.best_members,
    }
