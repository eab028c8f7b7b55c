"""How a row of probabilities becomes a label.

argmax is right for accuracy. Macro-F1 counts rare classes as much as common ones, so it pays to guess them more often:
one number (prior correction: argmax of p / prior^tau; Menon et al., "Long-tail learning via logit adjustment", ICLR
2021) keeps nearly all of what it claims; one number per class does not, unless it is shrunk.
"""

from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.metrics import LabelCounts, Metric, count_labels
from competition.ensemble.mixing import FLOOR
from competition.ensemble.shortlist import Shortlist, tally_of

TAUS = np.linspace(0.0, 1.5, 31)
OFFSETS = np.linspace(-1.5, 1.5, 31)  # tried around a class's present offset, in natural logarithms


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    rules: tuple[str, ...]  # candidates, the simplest first; see selection.choice
    passes: int  # per_class: rounds over all classes
    shrink_rows: float  # per_class: a class of this many rows keeps half of its fitted offset


@dataclass(frozen=True)
class Decision:
    """argmax(log p + offsets), or for `thresholds` the number of thresholds up to the expected class number."""

    rule: str
    offsets: tuple[float, ...]  # (C,) or () = none
    thresholds: tuple[float, ...]  # (C-1,) increasing, or () = none
    tau: float  # prior: the exponent, else 0

    def labels(self, probs: np.ndarray) -> np.ndarray:
        """(N, C) -> (N,) int64."""
        if self.thresholds:
            return np.searchsorted(np.array(self.thresholds), expected_class(probs), side="right")
        if self.offsets:
            return (logs(probs) + np.array(self.offsets)).argmax(1)
        return probs.argmax(1)


ARGMAX = Decision("argmax", (), (), 0.0)


def fit_decision(
    rule: str, probs: np.ndarray, labels: np.ndarray, metric: Metric, settings: DecisionSettings
) -> Decision:
    """probs: (N, C).  labels: (N,) int. For a metric of probabilities there is nothing to decide: always argmax."""
    if rule not in RULES:
        raise UserError(f"decision rule '{rule}' is not known; expected one of {', '.join(RULES)}")
    if metric.from_counts is None or rule == "argmax":
        return ARGMAX
    if rule == "prior":
        return _prior(probs, labels, metric)
    if rule == "per_class":
        return _per_class(probs, labels, metric, settings)
    return _thresholds(probs, labels, metric, settings.passes)


RULES = ("argmax", "prior", "per_class", "thresholds")


def rules_for(metric: Metric, rules: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the candidates that mean something: labels for metrics of labels, cuts where classes have an order."""
    if metric.from_counts is None:
        return ("argmax",)
    fitting = tuple(rule for rule in rules if rule != "thresholds" or metric.name == "quadratic_kappa")
    if not fitting:
        raise UserError(
            f"decision.rules: thresholds cut classes that have an order; {metric.name} knows none, expected argmax"
        )
    return fitting


def _prior(probs: np.ndarray, labels: np.ndarray, metric: Metric) -> Decision:
    """The smallest of the best taus. Prior: the classes' shares of these rows, a class without rows counting as one."""
    classes = probs.shape[1]
    rare = rarity(labels, classes)
    have = logs(probs)
    scores = [metric.score_labels(labels, (have + tau * rare).argmax(1), classes) for tau in TAUS]
    return _prior_of(float(TAUS[int(np.argmax(scores))]), rare)


def fit_prior(short: Shortlist, log_probs: np.ndarray, metric: Metric) -> Decision:
    """The same from the classes that can win.  log_probs: (S,) of the blend, up to a number for each row."""
    assert metric.from_counts is not None
    rare = rarity(short.labels, short.classes)
    have, favour = log_probs.astype(np.float64), rare[short.listed]
    low, high = (short.winners(have + tau * favour) for tau in TAUS[[0, -1]])
    # A class that wins at both ends wins in between: the largest of straight lines is convex.
    open_rows = low != high
    base = tally_of(short.labels[~open_rows], low[~open_rows], short.classes)
    entries, rest = np.repeat(open_rows, np.diff(short.start)), short.take(np.flatnonzero(open_rows))
    have, favour = have[entries], favour[entries]
    scores = [float(metric.from_counts(rest.tally(rest.winners(have + tau * favour)) + base)) for tau in TAUS]
    return _prior_of(float(TAUS[int(np.argmax(scores))]), rare)


def rarity(labels: np.ndarray, classes: int) -> np.ndarray:
    """(C,) float64: minus the logarithm of each class's share of these rows, a class without rows counting as one."""
    return -np.log(np.maximum(np.bincount(labels, minlength=classes), 1) / len(labels))


def _prior_of(tau: float, rare: np.ndarray) -> Decision:
    return Decision("prior", tuple((tau * rare).tolist()), (), tau) if tau else ARGMAX


def _per_class(probs: np.ndarray, labels: np.ndarray, metric: Metric, settings: DecisionSettings) -> Decision:
    """Coordinate ascent over one offset per class, then each shrunk by n / (n + shrink_rows), n rows of the class.

    For one class all other classes compete as before, so a row turns to it exactly when its offset passes the gap
    between the best of the others and itself: every offset is tried from one pass over the rows.
    """
    classes = probs.shape[1]
    have = logs(probs).astype(np.float64)
    offsets = np.zeros(classes)
    for _ in range(settings.passes):
        for c in range(classes):
            rest = have + offsets
            rest[:, c] = -np.inf
            rival = rest.argmax(1)
            gap = rest.max(1) - have[:, c]
            near = np.clip(offsets[c] + OFFSETS, OFFSETS[0], OFFSETS[-1])
            tried = np.r_[offsets[c], near]  # ties keep the present one
            scores = _scores(np.where(gap < tried[:, None], c, rival), labels, classes, metric)
            offsets[c] = tried[int(np.argmax(scores))]
    support = np.bincount(labels, minlength=classes)
    shrunk = offsets * support / (support + settings.shrink_rows)
    return Decision("per_class", tuple(shrunk.tolist()), (), 0.0)


def _thresholds(probs: np.ndarray, labels: np.ndarray, metric: Metric, passes: int) -> Decision:
    """Cut the expected class number, as graders do for ordered classes (quadratic kappa).

    Start: as many rows per class as the labels have. Then each cut in turn to its best of the gaps between rows.
    """
    classes = probs.shape[1]
    expected = expected_class(probs)
    cuts = np.quantile(expected, np.bincount(labels, minlength=classes).cumsum()[:-1] / len(labels))
    for _ in range(passes):
        for c in range(classes - 1):
            low = cuts[c - 1] if c else expected.min()
            high = cuts[c + 1] if c + 2 < classes else expected.max()
            inside = np.unique(expected[(expected >= low) & (expected <= high)])
            middle = (inside[1:] + inside[:-1]) / 2
            tried = np.r_[cuts[c], middle[:: max(1, len(middle) // 64)]]
            given = np.stack(
                [np.searchsorted(np.r_[cuts[:c], t, cuts[c + 1 :]], expected, side="right") for t in tried]
            )
            cuts[c] = tried[int(np.argmax(_scores(given, labels, classes, metric)))]
    return Decision("thresholds", (), tuple(cuts.tolist()), 0.0)


def _scores(predicted: np.ndarray, labels: np.ndarray, classes: int, metric: Metric) -> np.ndarray:
    """predicted: (T, N) int.  Returns (T,)."""
    assert metric.from_counts is not None
    tallies = [count_labels(labels, row, classes) for row in predicted]
    return metric.from_counts(
        LabelCounts(
            np.stack([t.hits for t in tallies]),
            np.stack([t.predicted for t in tallies]),
            tallies[0].actual,
            np.stack([t.squares for t in tallies]),
        )
    )


def expected_class(probs: np.ndarray) -> np.ndarray:
    """(N, C) -> (N,) float64: the mean class number."""
    return probs.astype(np.float64) @ np.arange(probs.shape[1])


def logs(probs: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probs, FLOOR))
