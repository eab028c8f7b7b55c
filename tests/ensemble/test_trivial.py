"""Every score stands beside the best answer that looks at no image, and a useless result is called useless."""

import numpy as np
import pytest

from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.metrics import METRICS
from competition.ensemble.trivial import trivial_output

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 400) % 3  # class 0 is twice as frequent as the others
SETS = RNG.random((400, 3)) < [0.9, 0.4, 0.1]
VALUES = RNG.normal(50, 10, 400)


@pytest.mark.parametrize(
    ("metric", "labels", "answer", "score"),
    [
        ("accuracy", LABELS, "the most frequent class for every row", (LABELS == 0).mean()),
        ("macro_f1", LABELS, "classes drawn at random, as often as they occur", 1 / 3),
        ("quadratic_kappa", LABELS, "the most frequent class for every row", 0.0),
        ("mean_column_auc", LABELS, "the share of each class as its probability", 0.5),
        ("multilabel_macro_f1", SETS, "every label for every row", np.mean(2 * SETS.mean(0) / (1 + SETS.mean(0)))),
        ("samples_f1", SETS, "the most frequent label for every row", 0.75),
        ("mean_average_precision", SETS, "the share of each label as its probability", SETS.mean()),
        ("rmse", VALUES, "the mean of all rows", VALUES.std()),
        ("mae", VALUES, "the median of all rows", np.abs(VALUES - np.median(VALUES)).mean()),
    ],
)
def test_the_trivial_baseline_is_the_best_answer_without_an_image(metric, labels, answer, score):
    name, output = trivial_output(labels, METRICS[metric], 3)
    shown = METRICS[metric].display(METRICS[metric].evaluate(labels, output, 3))
    assert name in (answer, "classes drawn at random, as often as they occur")  # both are about as good for kappa
    assert shown == pytest.approx(score, abs=0.03)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_a_trivial_baseline_that_a_perfect_result_beats_and_a_useless_one_does_not(metric):
    metric = METRICS[metric]
    if metric.target == "regression":
        labels, perfect = VALUES, VALUES[:, None]
    elif metric.target == "multi":
        labels, perfect = SETS, SETS.astype(float)
    else:
        labels = RNG.integers(0, 10, 400)
        perfect = np.eye(10)[labels]
    classes = perfect.shape[1]
    trivial = trivial_output(labels, metric, classes)[1]
    shuffled = np.random.default_rng(3).permutation(perfect)
    useless = shuffled if metric.needs_labels or metric.target == "regression" else 0.5 * shuffled + 0.05
    for output, is_gain in ((perfect, True), (useless, False)):
        over = paired(labels, trivial, metric.output_of(output), Evaluation(metric, classes, 200, 0))
        assert (over.value > 0 and over.is_significant) is is_gain, (over, is_gain)
