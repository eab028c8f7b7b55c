"""How a row of probabilities becomes a label.

argmax is optimal for accuracy. Macro-F1 weights rare classes as much as common ones, so predicting them more often
raises it. Prior correction has one parameter (argmax of p / prior^tau; Menon et al., "Long-tail learning via logit
adjustment", ICLR 2021) and keeps nearly all of its gain on fresh rows, while one fitted offset per class keeps a sixth.

In a multi-label competition the rules are "half", every label of probability 0.5 or more, and "thresholds", one per class
(`label_thresholds`). A regression has no decision rule ("none").
"""

from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.label_thresholds import fit_label_thresholds, label_sets
from competition.ensemble.metrics import DEFAULT_RULES, Metric, count_labels
from competition.ensemble.mixing import floored_logs

RULES = ("argmax", "prior", "thresholds")
TAUS = np.linspace(0.0, 1.5, 31)


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """The block `decision` of params.yaml."""

    rules: tuple[str, ...]  # candidates, the simplest first; see nested.select_candidate
    passes: int  # thresholds: rounds over all classes
    shrink_rows: (
        float  # thresholds of a multi-label competition: a class of this many rows keeps half of its fitted distance
    )
    at_least_one: bool = False  # multi-label: every row gets a label (the submission has no empty lists)


@dataclass(frozen=True)
class Decision:
    """argmax(log p + offsets); with thresholds, the number of thresholds not above the expected class number.

    Multi-label (independent): every label whose probability reaches its threshold, 0.5 without thresholds.
    """

    rule: str
    offsets: tuple[float, ...] = ()  # (C,) or () = none
    thresholds: tuple[float, ...] = ()  # (C-1,) increasing, or () = none
    tau: float = 0.0  # prior: the exponent, else 0
    independent: bool = False
    at_least_one: bool = False  # multi-label: a row without a label gets the one that comes closest

    def labels(self, probs: np.ndarray) -> np.ndarray:
        """(N, C) -> (N,) int64, or (N, C) bool if `independent`."""
        if self.independent:
            return label_sets(probs, np.array(self.thresholds) if self.thresholds else 0.5, self.at_least_one)
        if self.thresholds:
            expected = probs.astype(np.float64) @ np.arange(probs.shape[1])  # (N,) the mean class number
            return np.searchsorted(np.array(self.thresholds), expected, side="right")
        if self.offsets:
            return (floored_logs(probs) + np.array(self.offsets)).argmax(1)
        return probs.argmax(1)


ARGMAX = Decision("argmax")


def fit_decision(
    rule: str, probs: np.ndarray, labels: np.ndarray, metric: Metric, settings: DecisionSettings
) -> Decision:
    """Fit a decision rule of `rules_for` the metric.  probs: (N, C); the metric's default rule reads no row.  labels: of the metric."""
    if rule == DEFAULT_RULES[metric.target]:
        is_multi = metric.target == "multi"
        return Decision(rule, independent=is_multi, at_least_one=is_multi and settings.at_least_one)
    if metric.target == "multi":  # labels: (N, C) bool
        fitted = fit_label_thresholds(probs, labels, metric, settings.passes, settings.shrink_rows)
        return Decision(rule, (), tuple(fitted.tolist()), 0.0, True, settings.at_least_one)
    if rule == "thresholds":
        return _thresholds(probs, labels, metric, settings.passes)
    # Prior correction, with the smallest of the best taus. A class without rows counts as one of one row.
    classes, log_probs = probs.shape[1], floored_logs(probs)
    rarities = -np.log(np.maximum(np.bincount(labels, minlength=classes), 1) / len(labels))
    low, high = ((log_probs + tau * rarities).argmax(1) for tau in TAUS[[0, -1]])
    # The maximum of straight lines is convex, so a class that wins at both ends wins in between.
    varies, predicted, scores = low != high, low.copy(), []
    log_probs = log_probs[varies]
    for tau in TAUS:
        predicted[varies] = (log_probs + tau * rarities).argmax(1)
        scores.append(metric.evaluate(labels, predicted, classes))
    tau = float(TAUS[int(np.argmax(scores))])
    return Decision("prior", tuple((tau * rarities).tolist()), (), tau) if tau else ARGMAX


def rules_for(metric: Metric, rules: tuple[str, ...]) -> tuple[str, ...]:
    """The rules that apply to this metric: only argmax for probabilities, thresholds only for ordered classes (kappa).

    Multi-label: "half", and "thresholds" if it is among the rules. Regression: "none".
    """
    if metric.target == "multi" and metric.needs_labels and "thresholds" in rules:
        return (DEFAULT_RULES[metric.target], "thresholds")
    if not metric.needs_labels or metric.target == "multi":
        return (DEFAULT_RULES[metric.target],)
    applicable = tuple(rule for rule in rules if rule != "thresholds" or metric.name == "quadratic_kappa")
    if not applicable:
        raise UserError(
            f"decision.rules: thresholds need ordered classes (quadratic_kappa); expected argmax for {metric.name}"
        )
    return applicable


def _thresholds(probs: np.ndarray, labels: np.ndarray, metric: Metric, passes: int) -> Decision:
    """Thresholds on the expected class number, for ordered classes (quadratic kappa).

    Start with the class shares of the labels. Then move each threshold in turn to the best midpoint between rows.
    """
    classes = probs.shape[1]
    expected = probs.astype(np.float64) @ np.arange(classes)
    thresholds = np.quantile(expected, np.bincount(labels, minlength=classes).cumsum()[:-1] / len(labels))
    for _ in range(passes):
        for c in range(classes - 1):
            low = thresholds[c - 1] if c else expected.min()
            high = thresholds[c + 1] if c + 2 < classes else expected.max()
            inside = np.unique(expected[(expected >= low) & (expected <= high)])
            midpoints = (inside[1:] + inside[:-1]) / 2
            trials = np.r_[thresholds[c], midpoints[:: max(1, len(midpoints) // 64)]]
            predicted = np.stack(
                [np.searchsorted(np.r_[thresholds[:c], t, thresholds[c + 1 :]], expected, side="right") for t in trials]
            )
            scores = metric.evaluate_counts(count_labels(labels, predicted, classes))
            thresholds[c] = trials[int(np.argmax(scores))]
    return Decision("thresholds", thresholds=tuple(thresholds.tolist()))
