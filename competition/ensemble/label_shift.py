"""Label shift: adapt probabilities to rows whose classes have other shares than those of the training rows (blend.class_shares)."""

from collections.abc import Sequence

import numpy as np

STEPS = 200
TOLERANCE = 1e-5  # of a share
NAMED = 3  # classes in the sentence
FLOOR = 1e-6  # share of a class without training rows


def adapted_to_rows(probs: np.ndarray, training_shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, C) float32 under the class shares of these rows themselves, and these shares (C,) float64.

    Expectation maximisation (Saerens, Latinne and Decaestecker 2002, "Adjusting the outputs of a classifier to new a priori
    probabilities"). It assumes calibrated probabilities, and that only the shares differ: images of a class look alike in both.
    probs: (N, C) with N > 0.  training_shares: (C,), of the rows that the probabilities were learned from.
    """
    prior = np.maximum(training_shares, FLOOR)
    shares = prior
    for _ in range(STEPS):
        weighted = probs * (shares / prior)
        weighted /= weighted.sum(1, keepdims=True)
        before, shares = shares, weighted.mean(0)
        if np.abs(shares - before).max() < TOLERANCE:
            break
    return weighted.astype(np.float32), shares


def shares_sentence(training: np.ndarray, rows: np.ndarray, changed: int, names: Sequence[str]) -> str:
    """What the adaptation found.  training, rows: (C,) shares.  changed: labels that differ by it."""
    largest = np.argsort(-np.abs(rows - training), kind="stable")[:NAMED]
    listed = ", ".join(f"{names[c]} {rows[c]:.1%} instead of {training[c]:.1%}" for c in largest)
    return (
        f"the predictions are adapted to the class shares of the test rows (blend.class_shares): {listed}; labels changed: "
        f"{changed:,}; no score includes it, because training rows have their own shares"
    )
