"""Stacking with one weight per member (Wolpert 1992): a logarithmic opinion pool whose weights are fitted by log loss.

Weights are kept near equal ones as far as the rows do not contradict, so few rows give nearly equal weights and many rows the
best ones; their sum is the inverse temperature of the pool. The log loss is smooth and convex in the weights, while a metric of
labels follows single rows: on fresh rows of simulated and real members the pool beats equal weights and a search for the best
macro-F1 (docs/measured_runs.md).
"""

import numpy as np

from competition.ensemble.metrics import TargetKind

LOWEST_SUM = 0.05  # of the weights: an inverse temperature of 0 would leave no order of the classes
ENTRIES = 20_000_000  # members x rows x classes that are read; more rows hardly change one weight per member


def sampled_rows(members: int, rows: np.ndarray, classes: int) -> np.ndarray:
    """The rows (n,), or a sample of them that does not depend on labels, to which weights are fitted."""
    most = max(ENTRIES // (members * classes), 1_000)
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(0).permutation(rows)[:most])


def stack(parts: np.ndarray, targets: np.ndarray, ridge: float, kind: TargetKind) -> np.ndarray:
    """(M,) float64 weights >= 0 that minimise the log loss of the pool, or the squared error of a regression, plus a penalty.

    Their sum is free, but 1 for a regression.
    parts: (M, N, C) float32 logarithms of probabilities, log odds of labels, or values.  targets: (N,) int, (N, C) bool or (N,).
    The penalty, in nats, is ridge times the sum of the squared relative deviations from equal weights, 1 / M each.
    """
    from scipy.optimize import minimize
    from scipy.special import expit, log_softmax

    members, rows, _ = parts.shape
    if kind == "regression":
        return _stack_values(parts[:, :, 0].T.astype(np.float64), targets, ridge)
    true = np.eye(parts.shape[2], dtype=np.float32)[targets] if kind == "single" else targets.astype(np.float32)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = np.tensordot(weights.astype(np.float32), parts, 1)
        if kind == "single":
            log_probs = log_softmax(logits, 1)
            probs, value = np.exp(log_probs), -(log_probs * true).sum(dtype=np.float64)
        else:
            probs = expit(logits)
            value = np.logaddexp(0, logits).sum(dtype=np.float64) - (logits * true).sum(dtype=np.float64)
        gradient = np.array([np.vdot(probs - true, part) for part in parts], np.float64)
        deviation = members * weights - 1
        # Per row, so that the optimiser's tolerances do not depend on N.
        return (value + ridge * deviation @ deviation) / rows, (gradient + 2 * ridge * members * deviation) / rows

    start, bounds = np.full(members, 1 / members), [(0, None)] * members
    options = {"maxiter": 200, "ftol": 1e-9}
    weights = np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)
    if not weights.any():  # members without any information: even probabilities, in the order of their mean
        return start * LOWEST_SUM
    return weights * max(1.0, LOWEST_SUM / weights.sum())


def _stack_values(values: np.ndarray, targets: np.ndarray, ridge: float) -> np.ndarray:
    """Weights of sum 1 for values (N, M): nonnegative least squares."""
    from scipy.optimize import nnls

    members = values.shape[1]
    errors, weights = values - targets[:, None], np.full(members, 1 / members)
    penalty = np.sqrt(2 * ridge) * (members * np.eye(members) - 1)
    for _ in range(3):  # the unit is the error of the weighted mean, which the weights make smaller
        scaled = errors / max(float(np.sqrt(np.mean((errors @ weights) ** 2))), 1e-12)
        sum_row = np.full((1, members), 1e3 * (1 + float(np.linalg.norm(scaled))))  # so heavy that the weights sum to 1
        target = np.r_[np.zeros(len(errors) + members), sum_row[0, 0]]
        weights, _ = nnls(np.concatenate([scaled, penalty, sum_row]), target)
        weights /= weights.sum()
    return np.asarray(weights)
