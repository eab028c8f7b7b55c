import numpy as np
import pytest

from competition.config.errors import UserError
from competition.ensemble.bootstrap import Evaluation, paired, resampled, score_with_error
from competition.ensemble.metrics import METRICS

from .simulated import SINGLE_LABEL, draw

F1, ACCURACY = METRICS["macro_f1"], METRICS["accuracy"]


@pytest.mark.parametrize("name", SINGLE_LABEL)
def test_the_standard_error_is_that_of_resampling_row_by_row(name):
    labels, (probs,) = draw([1.5], rows=250, classes=6)
    metric = METRICS[name]
    output = probs.argmax(1) if metric.needs_labels else probs
    rng, scores = np.random.default_rng(1), []
    for _ in range(600):
        rows = np.concatenate([rng.choice(np.flatnonzero(labels == c), (labels == c).sum()) for c in range(6)])
        scores.append(metric.evaluate(labels[rows], output[rows], 6))
    # Classes of 10 rows or more: the rescaling hardly shows.
    bootstrapped = resampled(labels, [output], Evaluation(metric, 6, 600, seed=0))[0]
    assert bootstrapped.std() == pytest.approx(np.std(scores), rel=0.2)
    assert bootstrapped.mean() == pytest.approx(np.mean(scores), abs=4 * np.std(scores) / np.sqrt(300))


def test_common_mistakes_cancel_in_a_paired_difference():
    labels, (probs,) = draw([2.0], rows=1000)
    before = probs.argmax(1)
    after = before.copy()
    wrong = np.flatnonzero(before != labels)[:10]
    after[wrong] = labels[wrong]
    gain = paired(labels, before, after, Evaluation(F1, 5, 500, seed=0))
    assert (gain.changed, gain.corrected, gain.corrupted) == (10, 10, 0)
    assert gain.error < score_with_error(labels, after, Evaluation(F1, 5, 500, seed=0)).error / 2
    assert gain.low > 0 and gain.is_better
    assert paired(labels, 1 - labels % 2, labels, Evaluation(ACCURACY, 5, 50, seed=0)).high == 1  # at most


def test_the_paired_error_is_the_spread_over_new_samples():
    gains, errors = [], []
    for seed in range(60):
        labels, (first, second) = draw([2.0, 1.6], rows=500, seed=seed)
        gap = paired(labels, first.argmax(1), second.argmax(1), Evaluation(F1, 5, 200, seed=0))
        gains.append(gap.value)
        errors.append(gap.error)
    assert np.mean(errors) == pytest.approx(np.std(gains), rel=0.3)


def test_outputs_of_another_length_are_an_error():
    with pytest.raises(UserError, match="one prediction per label, found 3 for 4"):
        resampled(np.zeros(4, int), [np.zeros(3, int)], Evaluation(F1, 2, 10, seed=0))
