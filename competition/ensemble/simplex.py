"""Other searches for weights on the simplex, straight on the metric. All start from equal weights and keep the first of
equals, so a search that finds nothing returns the equal blend. Gradients are of no use: a metric of labels has none.
"""

from collections.abc import Callable

import numpy as np

from competition.ensemble.metrics import Metric
from competition.ensemble.mixing import to_probabilities, weighted_sum

STEPS = (1.0, 0.5, 0.25, 0.1, 0.05)  # coordinate search: weight given or taken before the weights are scaled to sum 1


def coordinate_weights(parts: np.ndarray, labels: np.ndarray, metric: Metric, mixing: str) -> np.ndarray:
    """Give to or take from one member at a time while that helps, in ever smaller steps.

    parts: (M, N, C).  labels: (N,) int.  Returns (M,) float64, not negative, sum 1.
    """
    score = _scorer(parts, labels, metric, mixing)
    weights = np.full(len(parts), 1 / len(parts))
    best = score(weights)
    for step in STEPS:
        better = True
        while better:
            better = False
            for m in range(len(parts)):
                for change in (step, -step):
                    tried = weights.copy()
                    tried[m] = max(tried[m] + change, 0.0)
                    if not tried.any():
                        continue
                    tried /= tried.sum()
                    value = score(tried)
                    if value > best:
                        best, weights, better = value, tried, True
    return weights


def nelder_mead_weights(parts: np.ndarray, labels: np.ndarray, metric: Metric, mixing: str) -> np.ndarray:
    """The downhill simplex of Nelder & Mead (1965) over |x| / sum |x|, from a simplex wide enough to see a step."""
    from scipy.optimize import minimize

    score, members = _scorer(parts, labels, metric, mixing), len(parts)
    start = np.full(members, 1 / members)
    corners = np.concatenate([start[None], start + 0.5 * np.eye(members)])
    found = minimize(
        lambda x: -score(np.abs(x) / np.abs(x).sum()),
        start,
        method="Nelder-Mead",
        options={"initial_simplex": corners, "maxfev": 60 * members, "xatol": 1e-3, "fatol": 1e-7},
    )
    return _better_of(score, start, np.abs(found.x) / np.abs(found.x).sum())


def optuna_weights(
    parts: np.ndarray, labels: np.ndarray, metric: Metric, mixing: str, trials: int, seed: int
) -> np.ndarray:
    """Tree-structured Parzen estimator over one number per member, scaled to sum 1; equal weights are tried first."""
    import optuna

    score, names = _scorer(parts, labels, metric, mixing), [f"w{m}" for m in range(len(parts))]

    def objective(trial: optuna.Trial) -> float:
        x = np.array([trial.suggest_float(name, 0.0, 1.0) for name in names])
        return score(x / x.sum()) if x.any() else -np.inf

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a library does not print a line per trial
    try:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        study.enqueue_trial(dict.fromkeys(names, 1.0))
        study.optimize(objective, n_trials=trials)
    finally:
        optuna.logging.set_verbosity(verbosity)
    x = np.array([study.best_params[name] for name in names])
    return _better_of(score, np.full(len(parts), 1 / len(parts)), x / x.sum())


def _scorer(parts: np.ndarray, labels: np.ndarray, metric: Metric, mixing: str) -> Callable[[np.ndarray], float]:
    return lambda weights: metric.score(labels, to_probabilities(weighted_sum(parts, weights), mixing))


def _better_of(score: Callable[[np.ndarray], float], start: np.ndarray, found: np.ndarray) -> np.ndarray:
    return found if score(found) > score(start) else start
