"""Blend methods: weights over members, fitted on out-of-fold rows.

A member is one model configuration; its fold models are averaged with equal weights, because they score different rows
and weights over them would measure which fold is easy. Of several methods `nested_cross_fit.select_candidate` selects one.

Default: stacking with one weight per member (Wolpert 1992), a logarithmic opinion pool whose weights are fitted by log loss.
They are kept near equal ones as far as the rows do not contradict, so few rows give nearly equal weights and many rows the best
ones; their sum is the inverse temperature of the pool. The log loss is smooth and convex in the weights, while a metric of labels
follows single rows: on fresh rows of simulated and real members the pool beats equal weights and a search for the best macro-F1
(docs/measured_runs.md).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from competition.config.params import Blend as BlendParams
from competition.ensemble.greedy_selection import greedy_picks
from competition.ensemble.metrics import Metric, TargetKind
from competition.ensemble.mixing import MEAN_OF, mix, to_mixing_space

STACKED = {"single": "geometric", "multi": "log_odds", "regression": "average"}  # target -> mixing of stacking
BLENDS = ("equal", "best", "bagged", "greedy", "stacking")
LOWEST_SUM = 0.05  # of the weights: an inverse temperature of 0 would leave no order of the classes
ENTRIES = 20_000_000  # members x rows x classes that are read; more rows hardly change one weight per member


@dataclass(frozen=True)
class Blend:
    """The weighted mean of the members, see `mixing.mix`."""

    method: str
    mixing: str
    weights: Mapping[str, float]  # member -> weight, not negative; sum 1, except for stacking where the scale is scored

    @property
    def shares(self) -> dict[str, float]:
        """The weights divided by their sum, which stacking uses as an inverse temperature."""
        total = sum(self.weights.values())
        return {name: weight / total for name, weight in self.weights.items()}

    @property
    def used(self) -> list[str]:
        """The members with a weight."""
        return [name for name, weight in self.weights.items() if weight]

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        """members: name -> (N, C).  Returns (N, C) float32.  Zero-weight members may be missing."""
        return mix((members[name] for name in self.used), (self.weights[name] for name in self.used), self.mixing)


def fit_blend(
    method: str,
    names: Iterable[str],
    probs_of: Callable[[str], np.ndarray],
    labels: np.ndarray,
    metric: Metric,
    settings: BlendParams,
) -> Blend:
    """Fit the weights of one method but "best"; equal weights read no member.

    probs_of: name -> (N, C), the same rows in the same order.  labels: as of `stack`.
    bagged: the mean of the greedy weights over half-samples of the rows. Caruana et al. (ICDM 2006) sample members; here
    rows are sampled, because a metric of 104 classes overfits to rows. Half-samples come in complementary pairs, so every
    row counts equally often.
    """
    names = sorted(names)  # so that the order in which members are listed has no influence
    mixing = STACKED[metric.target] if method == "stacking" else MEAN_OF[metric.target]
    if method == "equal":
        weights = np.full(len(names), 1.0 / len(names))
    else:
        parts = to_mixing_space(np.stack([probs_of(name) for name in names]), mixing)
        if method == "stacking":
            weights = stack(parts, labels, settings.ridge, metric.target)
            if metric.scores_order:  # rows are scored together whose weights were fitted apart: they need one scale
                weights = weights / weights.sum()
        else:
            halves = half_samples(labels, settings.bags, settings.seed) if method == "bagged" else [slice(None)]
            picks = [greedy_picks(parts[:, rows], labels[rows], metric, settings.rounds, mixing) for rows in halves]
            weights = np.mean([np.bincount(each, minlength=len(names)) / len(each) for each in picks], axis=0)
    return Blend(method, mixing, dict(zip(names, weights.tolist(), strict=True)))


def best_alone(names: Iterable[str], score: Callable[[str], float], target: TargetKind) -> Blend:
    """The blend "best": the member of the highest score, of equal ones the first by name."""
    names = sorted(names)
    best = max(names, key=score)
    return Blend("best", MEAN_OF[target], {name: float(name == best) for name in names})


def half_samples(labels: np.ndarray, bags: int, seed: int) -> list[np.ndarray]:
    """`bags` arrays of row numbers, each with half of every class; bags 2j and 2j+1 are complementary."""
    rng = np.random.default_rng(seed)
    halves: list[np.ndarray] = []
    if labels.ndim == 2:  # multi-label: each set of labels is halved
        labels = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    while len(halves) < bags:
        shuffled = rng.permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        # Every second row of the list sorted by class splits each class in half, up to one row.
        halves += [np.sort(by_class[0::2]), np.sort(by_class[1::2])]
    return halves[:bags]


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
