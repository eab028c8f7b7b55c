"""Probabilities adapted to rows of other class shares: the shares are found, labels get better, equal shares change little."""

import numpy as np
import pytest
from builders import params

from competition.config.errors import UserError
from competition.ensemble.label_shift import adapted_to_rows
from competition.ensemble.settings import chain_settings

PRIOR = np.array([0.6, 0.3, 0.1])


def rows(shares: np.ndarray, count: int = 4_000) -> tuple[np.ndarray, np.ndarray]:
    """Labels of these shares, and the probabilities of a model that is calibrated for rows of the shares PRIOR."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, count, p=shares)
    evidence = rng.normal(size=(count, 3)) + 1.5 * np.eye(3)[labels]
    odds = PRIOR * np.exp(1.5 * evidence)
    return labels, (odds / odds.sum(1, keepdims=True)).astype(np.float32)


def accuracy(probs: np.ndarray, labels: np.ndarray) -> float:
    return float((probs.argmax(1) == labels).mean())


@pytest.mark.parametrize("shares", [(0.1, 0.3, 0.6), (0.34, 0.33, 0.33), (0.0, 0.5, 0.5)])
def test_other_shares_are_found_and_more_labels_are_right(shares) -> None:
    labels, probs = rows(np.array(shares))
    adapted, found = adapted_to_rows(probs, PRIOR)
    assert found == pytest.approx(shares, abs=0.03) and found.sum() == pytest.approx(1)
    assert accuracy(adapted, labels) > accuracy(probs, labels) + 0.02
    assert adapted.dtype == np.float32 and np.allclose(adapted.sum(1), 1, atol=1e-5)


def test_a_class_without_training_rows_gets_no_row_that_is_not_certain() -> None:
    probs = np.array([[0.7, 0.3, 0.0], [0.2, 0.8, 0.0]], np.float32)
    adapted, found = adapted_to_rows(probs, np.array([0.5, 0.5, 0.0]))
    assert np.isfinite(adapted).all() and found[2] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "sets"),
    [("rmse", ""), ("multilabel_macro_f1", "decision.rules=[half] blend.methods=[equal]")],
)
def test_only_probabilities_of_single_labels_are_adapted(metric: str, sets: str) -> None:
    with pytest.raises(UserError, match=r"blend\.class_shares: test was found; only probabilities of single labels"):
        chain_settings(params(f"blend.class_shares=test {sets}"), metric)
