"""A metric that the user wrote as one function of labels and probabilities is worth what a built-in one is."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from competition.config.errors import UserError
from competition.config.plugins import NO_PLUGINS, LowerIsBetter, Plugins, activate
from competition.ensemble.bootstrap import Evaluation, paired, score_with_error
from competition.ensemble.expected_score import expected_scores
from competition.ensemble.metrics import METRICS, Metric, metric_named

CLASSES = 4


@pytest.fixture(autouse=True)
def _no_plugins_afterwards() -> Iterator[None]:
    yield
    activate(NO_PLUGINS)


def metric_of(function: Callable[..., object] | LowerIsBetter) -> Metric:
    activate(Plugins(metrics={"mine": function}))  # type: ignore[dict-item]
    return metric_named("mine")


def table(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.choice(CLASSES, rows, p=[0.5, 0.3, 0.15, 0.05])
    probs = rng.dirichlet(np.ones(CLASSES), rows)
    probs[np.arange(rows), labels] += 0.4
    return labels, probs / probs.sum(1, keepdims=True)


SAME = {
    "accuracy": lambda labels, probs: np.mean(probs.argmax(1) == labels),
    "log_loss": LowerIsBetter(lambda labels, probs: -np.log(probs[np.arange(len(labels)), labels]).mean()),
}


@pytest.mark.parametrize("name", SAME)
def test_score_and_standard_error_are_those_of_the_same_built_in_metric(name: str) -> None:
    (labels, probs), own, built_in = table(), metric_of(SAME[name]), METRICS[name]
    mine = score_with_error(labels, probs, Evaluation(own, CLASSES, 400, seed=0))
    expected = score_with_error(labels, built_in.output_of(probs), Evaluation(built_in, CLASSES, 400, seed=0))
    assert mine.value == pytest.approx(expected.value, abs=1e-6)
    assert mine.error == pytest.approx(expected.error, rel=0.12)  # two samples of 400 differ by 5 %
    assert own.display(mine.value) == pytest.approx(built_in.display(expected.value), abs=1e-6)
    after = probs.copy()
    after[:40] = np.eye(CLASSES)[labels[:40]]
    mine_gain, gain = (
        paired(labels, metric.output_of(probs), metric.output_of(after), Evaluation(metric, CLASSES, 400, seed=0))
        for metric in (own, built_in)
    )
    assert mine_gain.value == pytest.approx(gain.value) and mine_gain.error == pytest.approx(gain.error, rel=0.12)
    if name == "accuracy":  # labels count as certain probabilities
        assert own.evaluate(labels, probs.argmax(1), CLASSES) == np.mean(probs.argmax(1) == labels)


@pytest.mark.parametrize("value", [float("nan"), np.zeros(3), "good", None])
def test_anything_but_one_finite_number_is_an_error(value: object) -> None:
    with pytest.raises(UserError, match=r"METRICS\['mine'\]: it returned .*; one finite number was expected"):
        metric_of(lambda labels, probs: value).evaluate(*table())


def test_an_exception_is_tolerated_on_a_resample_and_reported_on_all_rows() -> None:
    labels, probs = table(40)
    auc = metric_of(lambda labels, probs: roc_auc_score(labels, probs, multi_class="ovr"))
    (drawn,) = expected_scores(labels, probs, Evaluation(auc, CLASSES, 100, 0), 40)  # one draw in eight lacks a class
    assert np.isfinite([drawn.middle, drawn.spread]).all() and drawn.spread > 0 and drawn.best is None
    with pytest.raises(UserError, match=r"METRICS\['mine'\]: ValueError: Number of classes"):
        auc.evaluate(labels[labels < 2], probs[labels < 2])
