"""Metrics against scikit-learn, the trivial baseline of each, and metrics that a user wrote as a function."""

import numpy as np
import pytest
from sklearn import metrics as reference

from competition.config.errors import UserError
from competition.config.plugins import NO_PLUGINS, LowerIsBetter, Plugins
from competition.ensemble.bootstrap import Evaluation, paired, score_with_error
from competition.ensemble.expected_score import expected_scores
from competition.ensemble.metrics import METRICS, metric_named
from competition.ensemble.trivial import trivial_score

from .simulated import draw


def single_label_table(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """labels (N,) and probs (N, C); some classes may lack, some probabilities may be equal."""
    classes, rows = rng.integers(2, 10), rng.integers(12, 61)
    probs = rng.dirichlet(np.ones(classes), rows)
    probs = np.round(probs, 1) + 0.01 if rng.random() < 0.5 else probs  # ties
    labels = rng.integers(0, rng.integers(2, classes + 1), rows)
    labels[:2] = 0, 1
    return labels, probs / probs.sum(1, keepdims=True)


def multi_label_table(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """targets (N, C) bool and probs (N, C); some classes have no positive row, or no negative one, some rows no label."""
    classes, rows = rng.integers(2, 8), rng.integers(10, 51)
    targets, probs = rng.random((rows, classes)) < rng.random(classes) / 2, rng.random((rows, classes))
    targets[:, 0] = rng.random() < 0.5  # a degenerate class
    targets[:2, 1] = True, False
    targets[2] = False
    return targets, np.round(probs, 1) if rng.random() < 0.5 else probs


TABLES = {
    "single": single_label_table,
    "multi": multi_label_table,
    "regression": lambda rng: (rng.normal(50, 20, 30), rng.normal(50, 20, (30, 1))),
}


def mean_auc(y, p):
    return np.mean([reference.roc_auc_score(y[:, c], p[:, c]) for c in range(y.shape[1]) if 0 < y[:, c].sum() < len(y)])


MACRO = {"average": "macro", "zero_division": 0}
REFERENCES = {
    "macro_f1": lambda y, p: reference.f1_score(y, p.argmax(1), labels=range(p.shape[1]), **MACRO),
    "macro_f1_present": lambda y, p: reference.f1_score(y, p.argmax(1), **MACRO),
    "accuracy": lambda y, p: reference.accuracy_score(y, p.argmax(1)),
    "quadratic_kappa": lambda y, p: reference.cohen_kappa_score(
        y, p.argmax(1), weights="quadratic", labels=range(p.shape[1])
    ),
    "log_loss": lambda y, p: reference.log_loss(y, p, labels=range(p.shape[1])),
    "mean_column_auc": lambda y, p: mean_auc(np.eye(p.shape[1], dtype=bool)[y], p),
    "multilabel_macro_f1": lambda y, p: reference.f1_score(y, p >= 0.5, **MACRO),
    "samples_f1": lambda y, p: reference.f1_score(y, p >= 0.5, average="samples", zero_division=0),
    "mean_average_precision": lambda y, p: reference.average_precision_score(y, p, average="macro"),
    "multilabel_mean_column_auc": mean_auc,
    "multilabel_log_loss": lambda y, p: np.mean(
        [reference.log_loss(y[:, c], p[:, c], labels=[False, True]) for c in range(y.shape[1])]
    ),
    "rmse": reference.root_mean_squared_error,
    "mae": reference.mean_absolute_error,
}


@pytest.mark.filterwarnings("ignore")  # of scikit-learn, of classes without positives
@pytest.mark.parametrize("name", REFERENCES)
def test_every_metric_equals_scikit_learn(name):
    metric = METRICS[name]
    for seed in range(40):
        targets, output = TABLES[metric.target](np.random.default_rng(seed))
        score = metric.display(metric.evaluate(targets, output))
        assert score == pytest.approx(REFERENCES[name](targets, output), abs=1e-12), seed


@pytest.mark.parametrize(
    ("name", "labels", "output", "score"),
    [
        ("top_5", [4, 5], np.full((2, 6), 1 / 6), 0.5),  # equal probabilities rank by class number
        ("macro_f1", [0, 1], np.array([0, 1]), 0.5),  # classes without rows and predictions count as 0
        ("macro_f1_present", [0, 1], np.array([0, 1]), 1),
        ("macro_f1_present", [0, 1], np.array([0, 2]), 1 / 3),
        ("quadratic_kappa", [0, 0, 0], np.array([0, 0, 0]), 1),  # one class, given to all its rows
    ],
)
def test_ties_and_absent_classes(name, labels, output, score):
    assert METRICS[name].evaluate(np.array(labels), output, 4) == pytest.approx(score)


def test_an_undefined_auc_and_an_unknown_metric_are_errors():
    with pytest.raises(UserError, match="a class with a positive and a negative row, found none"):
        METRICS["mean_column_auc"].evaluate(np.zeros(4, int), np.full((4, 3), 1 / 3))
    with pytest.raises(UserError, match="'f1' is not known; expected one of macro_f1"):
        metric_named("f1", NO_PLUGINS)


RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 400) % 3  # class 0 is twice as frequent as the others
SETS = RNG.random((400, 3)) < [0.9, 0.4, 0.1]
VALUES = RNG.normal(50, 10, 400)


@pytest.mark.parametrize(
    ("metric", "labels", "fitted_on", "score"),
    [
        ("accuracy", LABELS, None, (LABELS == 0).mean()),  # the most frequent class for every row
        ("macro_f1", LABELS, None, 1 / 3),  # classes drawn at random, as often as they occur
        ("quadratic_kappa", LABELS, None, 0.0),
        ("mean_column_auc", LABELS, None, 0.5),  # the share of each class as its probability
        # Every label for every row.
        ("multilabel_macro_f1", SETS, None, np.mean(2 * SETS.mean(0) / (1 + SETS.mean(0)))),
        ("samples_f1", SETS, None, 0.75),  # the most frequent label
        ("mean_average_precision", SETS, None, SETS.mean()),
        ("rmse", VALUES, None, VALUES.std()),  # the mean
        ("mae", VALUES, None, np.abs(VALUES - np.median(VALUES)).mean()),
        # Fitted on other rows, it does not know those that it is scored on.
        ("accuracy", LABELS, np.array([0, 2, 2]), (LABELS == 2).mean()),
        ("multilabel_macro_f1", SETS, np.eye(3)[[2, 2]] == 1, 2 / 3 * SETS[:, 2].mean() / (1 + SETS[:, 2].mean())),
        ("mean_average_precision", SETS, SETS[:5], SETS.mean()),
        ("rmse", VALUES, VALUES + 9, np.hypot(VALUES.std(), 9)),
    ],
)
def test_the_trivial_baseline_is_the_best_answer_without_an_image(metric, labels, fitted_on, score):
    tolerance = {"abs": 0.03} if fitted_on is None else {"rel": 1e-6}
    assert trivial_score(labels, METRICS[metric], 3, fitted_on)[1] == pytest.approx(score, **tolerance)


def metric_of(function):
    """The metric that a user wrote like this."""
    return metric_named("mine", Plugins(metrics={"mine": function}))


SAME = {
    "accuracy": lambda labels, probs: np.mean(probs.argmax(1) == labels),
    "log_loss": LowerIsBetter(lambda labels, probs: -np.log(probs[np.arange(len(labels)), labels]).mean()),
}


@pytest.mark.parametrize("name", SAME)
def test_score_and_standard_error_are_those_of_the_same_built_in_metric(name):
    labels, (probs,) = draw([1.5], 300, classes=4)
    after = np.concatenate([np.eye(4)[labels[:40]], probs[40:]])
    own, built_in = (Evaluation(metric, 4, 400, seed=0) for metric in (metric_of(SAME[name]), METRICS[name]))
    outputs = [each.metric.output_of(probs) for each in (own, built_in)]
    improved = [each.metric.output_of(after) for each in (own, built_in)]
    scores = [score_with_error(labels, *pair) for pair in zip(outputs, (own, built_in))]
    gains = [paired(labels, *three) for three in zip(outputs, improved, (own, built_in))]
    for mine, expected in (scores, gains):
        assert mine.value == pytest.approx(expected.value, abs=1e-6)
        assert mine.error == pytest.approx(expected.error, rel=0.12)  # two samples of 400 differ by 5 %
    assert own.metric.display(1.0) == built_in.metric.display(1.0)
    if name == "accuracy":  # labels count as certain probabilities
        assert own.metric.evaluate(labels, probs.argmax(1), 4) == np.mean(probs.argmax(1) == labels)


@pytest.mark.parametrize("value", [float("nan"), np.zeros(3), "good", None])
def test_anything_but_one_finite_number_is_an_error(value):
    with pytest.raises(UserError, match=r"METRICS\['mine'\]: it returned .*; one finite number was expected"):
        metric_of(lambda labels, probs: value).evaluate(np.arange(4), np.eye(4))


def test_an_exception_is_tolerated_on_a_resample_and_reported_on_all_rows():
    labels, (probs,) = draw([1.5], 40, classes=5)
    auc = metric_of(lambda labels, probs: reference.roc_auc_score(labels, probs, multi_class="ovr"))
    (drawn,) = expected_scores(labels, probs, Evaluation(auc, 5, 60, 0), 40)  # some draws lack a class
    assert np.isfinite([drawn.middle, drawn.spread]).all() and drawn.spread > 0 and drawn.best is None
    with pytest.raises(UserError, match=r"METRICS\['mine'\]: ValueError: Number of classes"):
        auc.evaluate(labels[labels < 2], probs[labels < 2])
