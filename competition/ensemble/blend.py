"""Blend methods: weights over members, fitted on out-of-fold rows.

A member is one model configuration; its fold models are averaged with equal weights, because they score different rows
and weights over them would measure which fold is easy. Default: stacking (`stacking`). Of several methods
`nested.select_candidate` selects one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.greedy import greedy_picks, weights_of
from competition.ensemble.metrics import Metric
from competition.ensemble.mixing import MEAN_OF, mix, to_mixing_space
from competition.ensemble.stacking import stack

STACKED = {"single": "geometric", "multi": "log_odds", "regression": "average"}  # target -> mixing of stacking
BLENDS = ("equal", "best", "bagged", "greedy", "stacking")


@dataclass(frozen=True, slots=True)
class BlendSettings:
    """The block `blend` of params.yaml."""

    methods: tuple[str, ...]  # candidates, the simplest first; see nested.select_candidate
    rounds: int  # greedy picks per bag
    bags: int  # half-samples of the rows, in complementary pairs
    ridge: float  # stacking: strength of the penalty towards equal weights (`stacking.stack`)
    seed: int


@dataclass(frozen=True)
class Blend:
    """The weighted mean of the members, see `mixing.mix`."""

    method: str
    mixing: str
    weights: Mapping[str, float]  # member -> weight, not negative; sum 1 except for stacking

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
        missing = [name for name in self.used if name not in members]
        if missing:
            raise UserError(
                f"{len(missing)} blended members have no predictions, first {missing[:3]}; run `make predict`"
            )
        return mix((members[name] for name in self.used), (self.weights[name] for name in self.used), self.mixing)


def fit_blend(
    method: str,
    names: Iterable[str],
    probs_of: Callable[[str], np.ndarray],
    labels: np.ndarray,
    metric: Metric,
    settings: BlendSettings,
) -> Blend:
    """Fit the weights of one method; equal weights read no member, and the best is found reading one after the other.

    probs_of: name -> (N, C), the same rows in the same order.  labels: as of `stack`.
    bagged: the mean of the greedy weights over half-samples of the rows. Caruana et al. (ICDM 2006) sample members; here
    rows are sampled, because a metric of 104 classes overfits to rows. Half-samples come in complementary pairs, so every
    row counts equally often.
    """
    names = sorted(names)  # so that the order in which members are listed has no influence
    mixing = STACKED[metric.target] if method == "stacking" else MEAN_OF[metric.target]
    if method == "equal":
        weights = np.full(len(names), 1.0 / len(names))
    elif method == "best":
        scores = [metric.evaluate(labels, mix([probs_of(name)], [1.0], mixing)) for name in names]
        weights = np.eye(len(names))[int(np.argmax(scores))]
    else:
        parts = to_mixing_space(np.stack([probs_of(name) for name in names]), mixing)
        if method == "stacking":
            weights = stack(parts, labels, settings.ridge, metric.target)
        else:
            halves = half_samples(labels, settings.bags, settings.seed) if method == "bagged" else [slice(None)]
            picks = [greedy_picks(parts[:, rows], labels[rows], metric, settings.rounds, mixing) for rows in halves]
            weights = np.mean([weights_of(each, len(names)) for each in picks], axis=0)
    return Blend(method, mixing, dict(zip(names, weights.tolist(), strict=True)))


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
