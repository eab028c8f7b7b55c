"""Adversarial validation: can a classifier distinguish test rows from training rows?

A logistic regression on the image descriptors of series.py, cross-validated, with duplicates and series in one fold. At an
AUC of 0.5 they are indistinguishable; only then does an out-of-fold score predict the test score.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

LEAST = 50  # smallest number of rows of each part
FOLDS = 5
INVERSE_STRENGTH = 0.03  # C of the logistic regression on standardised descriptors
ITERATIONS = 50  # Newton steps; three to ten are needed
SOLVER = "newton-cholesky"  # for more rows than columns; a fifth of the time of lbfgs
ALIKE = 0.55  # the lower end of the AUC's 95 % interval above which test rows differ
# DeLong's error takes the fitted models as given. Over 150 random splits of 140 to 400 digits and of 150 and 200 flower
# photos the deviation of the AUC was 1.31 to 1.46 times it; so corrected, 1 of 740 splits had a lower end above ALIKE.
REFITTED = 1.35
LARGEST_ODDS = 50.0  # largest weight of a training row
UNLIKE = 0.99  # quantile of the training rows' odds; a test row above it is unlike any training row


@dataclass(frozen=True, slots=True)
class Shift:
    """auc: of the classifier of test rows against training rows, with its 95 % interval.  unlike: test rows unlike training rows."""

    auc: float
    low: float
    high: float
    train_rows: int
    test_rows: int
    unlike: int

    @property
    def differs(self) -> bool:
        return self.low > ALIKE


def compare(index: pd.DataFrame, embedding: np.ndarray, groups: np.ndarray) -> tuple[Shift | None, pd.DataFrame]:
    """Return the shift, or None if there are too few rows, and id, part and odds of all readable training and test rows.

    embedding: (N, F) float32, groups: (N,) int, by row of the index.
    odds: estimated density of test rows over that of training rows, by a model that was not fitted on the row's group.
    """
    table = index.reset_index(drop=True)
    rows = np.flatnonzero(table["part"].isin(["train", "test"]) & (table["problem"] == ""))
    is_test = (table["part"].to_numpy() == "test")[rows]
    train_rows, test_rows = int((~is_test).sum()), int(is_test.sum())
    if min(train_rows, test_rows) < LEAST or len(np.unique(groups[rows])) < LEAST:
        return None, pd.DataFrame({"id": [], "part": [], "odds": []})
    logits = _held_out_logits(embedding[rows], is_test, groups[rows])
    auc, error = auc_with_error(logits[~is_test], logits[is_test])
    unlike = int((logits[is_test] > np.quantile(logits[~is_test], UNLIKE)).sum())
    reach = 1.96 * REFITTED * error
    low, high = max(auc - reach, 0.0), min(auc + reach, 1.0)
    odds = np.exp(np.clip(logits, -np.log(LARGEST_ODDS), np.log(LARGEST_ODDS)))
    part = np.where(is_test, "test", "train")
    odds_table = pd.DataFrame({"id": table["id"].to_numpy()[rows], "part": part, "odds": odds.round(6)})
    return Shift(auc, low, high, train_rows, test_rows, unlike), odds_table


def auc_with_error(negative: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Return (AUC, its standard error by DeLong, DeLong and Clarke-Pearson 1988).  negative: (n,).  positive: (m,) scores."""
    shares = []  # for each score, the share of the other side's scores that are below it; ties count one half
    for scores, others in ((positive, np.sort(negative)), (negative, np.sort(positive))):
        below_twice = np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")
        shares.append(below_twice / (2 * len(others)))
    above, below = shares[0], 1 - shares[1]
    variance = above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below)
    return float(above.mean()), float(np.sqrt(variance))


def _held_out_logits(embedding: np.ndarray, is_test: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(N,) log odds of "is a test row", each by a model fitted without the row's group; both parts have equal weight."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    values = (embedding - embedding.mean(0)) / (embedding.std(0) + 1e-6)
    _, group = np.unique(groups, return_inverse=True)
    fold = (np.random.default_rng(0).permutation(group.max() + 1) % FOLDS)[group]
    model = LogisticRegression(C=INVERSE_STRENGTH, max_iter=ITERATIONS, solver=SOLVER, class_weight="balanced")
    return cross_val_predict(model, values, is_test, cv=PredefinedSplit(fold), method="decision_function")
