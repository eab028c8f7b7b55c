import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from competition.config.errors import UserError
from competition.ensemble.metrics import METRICS, metric_named


@st.composite
def tables(draw_):
    """labels (N,) and probs (N, C); some classes may lack, some probabilities may be equal."""
    c, n = draw_(st.integers(2, 9)), draw_(st.integers(12, 60))
    rng = np.random.default_rng(draw_(st.integers(0, 2**32 - 1)))
    probs = rng.dirichlet(np.ones(c), n)
    if draw_(st.booleans()):
        probs = np.round(probs, 1) + 0.01  # ties
        probs /= probs.sum(1, keepdims=True)
    labels = rng.integers(0, draw_(st.integers(2, c)), n)
    labels[:2] = 0, 1
    return labels, probs


REFERENCES = {
    "macro_f1": lambda y, p: reference.f1_score(
        y, p.argmax(1), labels=range(p.shape[1]), average="macro", zero_division=0
    ),
    "macro_f1_present": lambda y, p: reference.f1_score(y, p.argmax(1), average="macro", zero_division=0),
    "accuracy": lambda y, p: reference.accuracy_score(y, p.argmax(1)),
    "quadratic_kappa": lambda y, p: reference.cohen_kappa_score(
        y, p.argmax(1), weights="quadratic", labels=range(p.shape[1])
    ),
    "log_loss": lambda y, p: -reference.log_loss(y, p, labels=range(p.shape[1])),
    "mean_column_auc": lambda y, p: np.mean(
        [reference.roc_auc_score(y == c, p[:, c]) for c in range(p.shape[1]) if 0 < (y == c).sum() < len(y)]
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
@settings(max_examples=60, deadline=None)
@given(table=tables())
def test_every_metric_equals_scikit_learn(name, table):
    assert METRICS[name].evaluate(*table) == pytest.approx(REFERENCES[name](*table), abs=1e-12)


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


def test_an_auc_without_a_class_of_both_kinds_of_rows_is_an_error():
    with pytest.raises(UserError, match="a class with a positive and a negative row, found none"):
        METRICS["mean_column_auc"].evaluate(np.zeros(4, int), np.full((4, 3), 1 / 3))


def test_an_unknown_metric_is_an_error_with_the_known_ones():
    with pytest.raises(UserError, match="'f1' is not known; expected one of macro_f1"):
        metric_named("f1")
