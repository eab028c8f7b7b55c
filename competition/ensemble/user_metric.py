"""Scores by a metric that the user wrote as one function of labels and probabilities.

The function knows no weights, so a resample is a table of rows, drawn as often as the weights say.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from competition.config.errors import UserError
from competition.config.plugins import active

Function = Callable[[np.ndarray, np.ndarray], float]
FEWEST_DEFINED = 0.5  # share of the resamples that must have a score


def user_score(
    name: str, function: Function, sign: int
) -> Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]:
    """The score of a metric of the active plugins: (labels, probs, weights) -> sign * function, or (R,) scores of R resamples.

    labels: (N,) int.  probs: (N, C).  weights: (R, N) or None.  sign: -1 if lower is better.
    A resample without a score counts as the mean of the others. UserError if most have none, or if the rows have none.
    """
    plugins, what = active(), f"METRICS[{name!r}]"

    def score(labels: np.ndarray, probs: np.ndarray) -> float:
        value: Any = plugins.call(what, function, labels, probs)
        if np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number) and np.isfinite(value):
            return sign * float(value)
        returned = f"an array of shape {np.shape(value)}" if np.ndim(value) else repr(value)
        raise UserError(plugins.problem(what, f"it returned {returned[:80]}; one finite number was expected"))

    def score_rows(labels: np.ndarray, probs: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        if weights is None:
            return np.asarray(score(labels, probs))
        # How often each row is drawn, by systematic rounding of its weight. Whole weights stay as they are. Sums over leading rows
        # are kept to less than one, so a class whose weights sum to its number of rows keeps it if the rows are sorted by class.
        offsets = (np.arange(len(weights)) * 0.6180339887498949 + 0.5) % 1  # another one for each resample
        sums = np.round(np.cumsum(weights, axis=1, dtype=np.float64), 6) + offsets[:, None]
        counts = np.diff(np.floor(sums), axis=1, prepend=np.floor(offsets)[:, None]).astype(np.int64)
        scores, problem = np.full(len(weights), np.nan), ""
        for n, counts_of_rows in enumerate(counts):
            rows = np.repeat(np.arange(len(labels)), counts_of_rows)
            try:
                scores[n] = score(labels[rows], probs[rows])
            except UserError as error:  # scikit-learn's ROC AUC raises if a class is missing in the sample
                problem = str(error)
        defined = np.isfinite(scores)
        if defined.mean() < FEWEST_DEFINED:
            raise UserError(f"{problem}; it must return a number for most resamples of the rows")
        return np.where(defined, scores, scores[defined].mean())

    return score_rows
