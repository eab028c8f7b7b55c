"""Blend methods: weights over members, fitted on out-of-fold rows.

A member is one model configuration; its fold models are averaged with equal weights, because they score different rows
and weights over them would measure which fold is easy. Default: stacking (`stacking`). Of several methods
`nested.select_candidate` selects one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.greedy import greedy_picks, shortlist_of, shortlist_picks, weights_of
from competition.ensemble.metrics import Metric
from competition.ensemble.mixing import to_mixing_space, to_probabilities
from competition.ensemble.shortlist import Shortlist
from competition.ensemble.simplex import coordinate_weights, nelder_mead_weights, optuna_weights
from competition.ensemble.stacking import stack


@dataclass(frozen=True, slots=True)
class BlendSettings:
    """The block `blend` of params.yaml."""

    calibrations: tuple[str, ...]  # candidates, the simplest first: none | temperature
    methods: tuple[str, ...]  # candidates, the simplest first; see nested.select_candidate
    mixing: str  # mean | geometric | rank: what is averaged
    rounds: int  # greedy picks per bag
    bags: int  # half-samples of the rows, in complementary pairs
    trials: int  # optuna
    ridge: float  # stacking: strength of the penalty towards equal weights (`stacking.stack`)
    seed: int


@dataclass(frozen=True)
class Blend:
    """to_probabilities(sum over members of weight * to_mixing_space(probs))."""

    method: str
    mixing: str
    weights: Mapping[str, float]  # member -> weight, not negative; sum 1 except for stacking

    @property
    def shares(self) -> dict[str, float]:
        """The weights divided by their sum, which stacking uses as an inverse temperature."""
        total = sum(self.weights.values())
        return {name: weight / total for name, weight in self.weights.items()}

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        """members: name -> (N, C).  Returns (N, C) float32.  Zero-weight members may be missing."""
        used = [name for name, weight in self.weights.items() if weight]
        missing = [name for name in used if name not in members]
        if missing:
            raise UserError(
                f"{len(missing)} blended members have no predictions, first {missing[:3]}; run `make predict`"
            )
        first, *others = used
        mixed = np.float32(self.weights[first]) * to_mixing_space(members[first], self.mixing)
        for name in others:
            mixed += np.float32(self.weights[name]) * to_mixing_space(members[name], self.mixing)
        return to_probabilities(mixed, self.mixing)


STACKED = {"single": "geometric", "multi": "log_odds", "regression": "average"}  # target -> mixing of stacking
SHORTLIST_METHODS = ("equal", "best", "greedy", "bagged")  # fitted on shortlists for a metric of labels
BLENDS = ("equal", "best", "rank", "bagged", "greedy", "coordinate", "nelder_mead", "optuna", "stacking")


def fit_blend(
    method: str, members: Mapping[str, np.ndarray], labels: np.ndarray, metric: Metric, settings: BlendSettings
) -> Blend:
    """Fit the weights of one method.  members: name -> (N, C), the same rows in the same order.  labels: as of `stack`."""
    if method not in BLENDS:
        raise UserError(f"blend method '{method}' is not known; expected one of {', '.join(BLENDS)}")
    # Sorted, so that the order in which members are listed has no influence.
    names = sorted(members)
    probs = np.stack([members[name] for name in names])
    # Stacking is defined on log probabilities and the rank blend on ranks, whatever blend.mixing says.
    mixing = {"stacking": STACKED[metric.target], "rank": "rank"}.get(method, settings.mixing)
    parts = to_mixing_space(probs, mixing)
    if method == "stacking":
        weights = stack(parts, labels, settings.ridge, metric.target)
    elif method == "coordinate":
        weights = coordinate_weights(parts, labels, metric, mixing)
    elif method == "nelder_mead":
        weights = nelder_mead_weights(parts, labels, metric, mixing)
    elif method == "optuna":
        weights = optuna_weights(parts, labels, metric, mixing, settings.trials, settings.seed)
    elif metric.from_counts is not None and method in SHORTLIST_METHODS:
        weights = shortlist_weights(method, shortlist_of(parts, labels, mixing), metric, settings)
    else:
        weights = _simple_weights(
            method,
            len(parts),
            lambda: [metric.evaluate(labels, to_probabilities(part, mixing)) for part in parts],
            lambda rows: greedy_picks(parts[:, rows], labels[rows], metric, settings.rounds, mixing),
            labels,
            settings,
        )
    return Blend(method, mixing, dict(zip(names, weights.tolist(), strict=True)))


def shortlist_weights(method: str, short: Shortlist, metric: Metric, settings: BlendSettings) -> np.ndarray:
    """(M,) weights of one of SHORTLIST_METHODS, for a metric of labels."""

    return _simple_weights(
        method,
        len(short.values),
        lambda: metric.evaluate_counts(short.counts(short.winners(short.values))),
        lambda rows: shortlist_picks(
            short.take(rows) if isinstance(rows, np.ndarray) else short, metric, settings.rounds
        ),
        short.labels,
        settings,
    )


def _simple_weights(
    method: str,
    members: int,
    scores: Callable[[], Sequence[float] | np.ndarray],
    picks: Callable[[np.ndarray | slice], list[int]],
    labels: np.ndarray,
    settings: BlendSettings,
) -> np.ndarray:
    """(M,) weights.  scores: of each member alone.  picks: row numbers, or slice(None) -> greedy picks on these rows.

    bagged: the mean of the greedy weights over half-samples of the rows. Caruana et al. (ICDM 2006) sample members; here
    rows are sampled, because a metric of 104 classes overfits to rows. Half-samples come in complementary pairs, so every
    row counts equally often.
    """
    if method in ("equal", "rank"):  # rank: equal weights over ranks
        return np.full(members, 1.0 / members)
    if method == "best":
        return np.eye(members)[int(np.argmax(scores()))]
    halves = half_samples(labels, settings.bags, settings.seed) if method == "bagged" else [slice(None)]
    return np.asarray(np.mean([weights_of(picks(rows), members) for rows in halves], axis=0))


def methods_for(metric: Metric, methods: Iterable[str]) -> tuple[str, ...]:
    """The blend methods that apply to this metric: means of ranks have neither the unit of a regression nor a probability of 0.5."""
    without_ranks = metric.target == "regression" or (metric.target == "multi" and metric.needs_labels)
    return tuple(method for method in methods if not (method == "rank" and without_ranks))


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
