"""Derivative-free searches for weights on the simplex that maximise the metric itself.

All start from equal weights and return them if nothing better is found. A metric of labels has no gradient.
"""

from collections.abc import Callable

import numpy as np

from competition.ensemble.metrics import Metric
from competition.ensemble.mixing import to_probabilities, weighted_sum

STEPS = (1.0, 0.5, 0.25, 0.1, 0.05)  # coordinate search: change of one weight before the weights are rescaled to sum 1


def coordinate_weights(parts: np.ndarray, labels: np.ndarray, metric: Metric, mixing: str) -> np.ndarray:
    """Coordinate search: change one weight at a time while the score improves, with decreasing steps.

    parts: (M, N, C).  labels: (N,) int.  Returns (M,) float64, not negative, sum 1.
    """
    score = _scorer(parts, labels, metric, mixing)
    weights = np.full(len(parts), 1 / len(parts))
    best = score(weights)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for m in range(len(parts)):
                for change in (step, -step):
                    trial = weights.copy()
                    trial[m] = max(trial[m] + change, 0.0)
                    if not trial.any():
                        continue
                    trial /= trial.sum()
                    value = score(trial)
                    if value > best:
                        best, weights, improved = value, trial, True
    return weights


def nelder_mead_weights(parts: np.ndarray, labels: np.ndarray, metric: Metric, mixing: str) -> np.ndarray:
    """The downhill simplex of Nelder & Mead (1965) over |x| / sum |x|, from a simplex wide enough to see a step."""
    from scipy.optimize import minimize

    score, members = _scorer(parts, labels, metric, mixing), len(parts)
    start = np.full(members, 1 / members)
    corners = np.concatenate([start[None], start + 0.5 * np.eye(members)])
    result = minimize(
        lambda x: -score(np.abs(x) / np.abs(x).sum()),
        start,
        method="Nelder-Mead",
        options={"initial_simplex": corners, "maxfev": 60 * members, "xatol": 1e-3, "fatol": 1e-7},
    )
    return _or_equal(score, np.abs(result.x) / np.abs(result.x).sum())


def optuna_weights(
    parts: np.ndarray, labels: np.ndarray, metric: Metric, mixing: str, trials: int, seed: int
) -> np.ndarray:
    """Tree-structured Parzen estimator over one number per member, scaled to sum 1; equal weights are trial first."""
    import optuna

    score, names = _scorer(parts, labels, metric, mixing), [f"w{m}" for m in range(len(parts))]

    def objective(trial: optuna.Trial) -> float:
        x = np.array([trial.suggest_float(name, 0.0, 1.0) for name in names])
        return score(x / x.sum()) if x.any() else -np.inf

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # no log line per trial
    try:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        study.enqueue_trial(dict.fromkeys(names, 1.0))
        study.optimize(objective, n_trials=trials)
    finally:
        optuna.logging.set_verbosity(verbosity)
    x = np.array([study.best_params[name] for name in names])
    return _or_equal(score, x / x.sum())


def _scorer(parts: np.ndarray, labels: np.ndarray, metric: Metric, mixing: str) -> Callable[[np.ndarray], float]:
    return lambda weights: metric.evaluate(labels, to_probabilities(weighted_sum(parts, weights), mixing))


def _or_equal(score: Callable[[np.ndarray], float], result: np.ndarray) -> np.ndarray:
    """The weights of a search, or equal ones if they score as well."""
    start = np.full(len(result), 1 / len(result))
    return result if score(result) > score(start) else start
