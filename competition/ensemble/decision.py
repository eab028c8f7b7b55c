"""How a row of probabilities becomes a label.

argmax is optimal for accuracy. Macro-F1 weights rare classes as much as common ones, so predicting them more often
raises it. Prior correction has one parameter (argmax of p / prior^tau; Menon et al., "Long-tail learning via logit
adjustment", ICLR 2021) and keeps nearly all of its gain on fresh rows, while one fitted offset per class keeps a sixth.
The exponent is pulled towards 0 by its uncertainty instead of being rejected for want of significance: on photos of unequal
classes that keeps gains of .02 which no test of 400 rows finds (docs/measured_runs.md).

In a multi-label competition the rules are "half", every label of probability 0.5 or more, and "thresholds", one per class: a
row gets each label whose probability reaches the label's threshold. A threshold of its own for every class overfits to rare
classes, as offsets do. So one common threshold is fitted first, and each class's own threshold is pulled towards it, to
n / (n + shrink_rows) of the way, where n is the number of rows with the label. A regression has no decision rule ("none").
"""

from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.config.params import Decision as DecisionParams
from competition.ensemble.metrics import DEFAULT_RULES, Metric, count_labels, label_counts_of_samples
from competition.ensemble.mixing import FLOOR, floored_logs
from competition.ensemble.stored_predictions import chunks

RULES = ("argmax", "prior", "thresholds")
TAUS = np.linspace(0.0, 1.5, 31)
SAMPLES = 50  # bootstrap samples of prior correction
COMMON = np.linspace(0.02, 0.98, 49)  # common thresholds tried
TRIED = 48  # thresholds of one class tried for a metric of rows


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
    at_least_one: bool = False  # multi-label: a row without a label gets the one that comes closest to its threshold

    def labels(self, probs: np.ndarray) -> np.ndarray:
        """(N, C) -> (N,) int64, or (N, C) bool if `independent`."""
        if self.independent:
            margin = probs - (np.array(self.thresholds) if self.thresholds else 0.5)
            decided: np.ndarray = margin >= 0
            if self.at_least_one:
                empty = np.flatnonzero(~decided.any(1))
                decided[empty, margin[empty].argmax(1)] = True
            return decided
        if self.thresholds:
            expected = probs.astype(np.float64) @ np.arange(probs.shape[1])  # (N,) the mean class number
            return np.searchsorted(np.array(self.thresholds), expected, side="right")
        if self.offsets:
            return (floored_logs(probs) + np.array(self.offsets)).argmax(1)
        return probs.argmax(1)


ARGMAX = Decision("argmax")


def fit_decision(
    rule: str,
    probs: np.ndarray,
    labels: np.ndarray,
    metric: Metric,
    settings: DecisionParams,
    at_least_one: bool = False,
) -> Decision:
    """Fit a decision rule of `rules_for` the metric.

    probs: (N, C); the metric's default rule reads no row.  labels: of the metric.  at_least_one: of a multi-label Decision.
    """
    if metric.target == "multi":  # labels: (N, C) bool
        thresholds: tuple[float, ...] = ()
        if rule != DEFAULT_RULES["multi"]:
            fitted = fit_label_thresholds(probs, labels, metric, settings.passes, settings.shrink_rows)
            thresholds = tuple(fitted.tolist())
        return Decision(rule, thresholds=thresholds, independent=True, at_least_one=at_least_one)
    if rule == DEFAULT_RULES[metric.target]:
        return Decision(rule)
    if rule == "thresholds":
        return _thresholds(probs, labels, metric, settings.passes)
    return _prior_correction(probs, labels, metric)


def rules_for(metric: Metric, rules: tuple[str, ...]) -> tuple[str, ...]:
    """The rules that apply to this metric: only argmax for probabilities and accuracy, thresholds only for ordered classes (kappa).

    Multi-label: "half", and "thresholds" if it is among the rules. Regression: "none".
    """
    if metric.target == "multi" and metric.needs_labels and "thresholds" in rules:
        return (DEFAULT_RULES[metric.target], "thresholds")
    if not metric.needs_labels or metric.target == "multi" or metric.name == "accuracy":
        return (DEFAULT_RULES[metric.target],)
    applicable = tuple(rule for rule in rules if rule != "thresholds" or metric.name == "quadratic_kappa")
    if not applicable:
        raise UserError(
            f"decision.rules: thresholds need ordered classes (quadratic_kappa); expected argmax for {metric.name}"
        )
    return applicable


def _prior_correction(probs: np.ndarray, labels: np.ndarray, metric: Metric) -> Decision:
    """Prior correction by an exponent that its own uncertainty pulls towards 0, which is argmax.

    On each bootstrap sample of the rows the smallest of the best exponents is taken. With their mean m and standard deviation
    s the exponent is m * max(0, 1 - s^2 / m^2) (James and Stein 1961, positive part): near m where the rows agree, 0 where they do not.
    """
    count, classes = probs.shape
    # A class without rows counts as one of one row.
    rarities = -np.log(np.maximum(np.bincount(labels, minlength=classes), 1) / count)
    low, varies, varying = probs.argmax(1), np.zeros(count, bool), []
    for part in chunks(count, classes):
        log_probs = floored_logs(probs[part])
        # The maximum of straight lines is convex, so a class that wins at both ends wins in between.
        varies[part] = (log_probs + TAUS[-1] * rarities).argmax(1) != low[part]
        varying.append(log_probs[varies[part]])
    rng = np.random.default_rng(0)
    drawn = np.stack([np.bincount(rng.integers(0, count, count), minlength=count) for _ in range(SAMPLES)])
    same = label_counts_of_samples(labels[~varies], low[~varies], drawn[:, ~varies], classes)
    labels, drawn = labels[varies], drawn[:, varies]
    scores = []
    for tau in TAUS:
        predicted = np.concatenate([(log_probs + tau * rarities).argmax(1) for log_probs in varying])
        scores.append(metric.evaluate_counts(same + label_counts_of_samples(labels, predicted, drawn, classes)))
    best = TAUS[np.argmax(scores, axis=0)]  # of each sample
    mean, variance = best.mean(), best.var()
    tau = float(mean - variance / mean) if mean**2 > variance else 0.0
    return Decision("prior", tuple((tau * rarities).tolist()), (), tau) if tau else ARGMAX


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


def fit_label_thresholds(
    probs: np.ndarray, labels: np.ndarray, metric: Metric, passes: int, shrink_rows: float
) -> np.ndarray:
    """(C,) float64 thresholds.  probs: (N, C).  labels: (N, C) bool.  metric: of multi-label decisions."""
    from scipy.special import expit, logit

    scores = [metric.evaluate(labels, probs >= threshold) for threshold in COMMON]
    # Among equals the threshold next to one half.
    best = np.flatnonzero(np.array(scores) == max(scores))
    common = float(COMMON[best[np.argmin(np.abs(COMMON[best] - 0.5))]])
    if metric.name == "multilabel_macro_f1":
        own = np.array([_best_f1_threshold(probs[:, c], labels[:, c], common) for c in range(probs.shape[1])])
    elif metric.name == "samples_f1":
        own = _coordinate_ascent(probs, labels, common, passes)
    else:
        own = np.full(probs.shape[1], common)
    positives = labels.sum(0)
    share = positives / (positives + shrink_rows) if shrink_rows else np.ones(len(own))
    start, end = logit(common), logit(np.clip(own, FLOOR, 1 - FLOOR))
    return np.asarray(expit(start + share * (end - start)))


def _best_f1_threshold(probs: np.ndarray, labels: np.ndarray, default: float) -> float:
    """The threshold of the best F1 of one class, between two neighbouring probabilities; `default` without positives."""
    positives = int(labels.sum())
    if not positives:
        return default
    order = np.argsort(-probs, kind="stable")
    ranked = probs[order].astype(np.float64)
    scores = 2 * labels[order].cumsum() / (np.arange(1, len(probs) + 1) + positives)
    scores[:-1][ranked[1:] == ranked[:-1]] = -1  # equal probabilities are decided alike
    cut = int(np.argmax(scores))
    below = ranked[cut + 1] if cut + 1 < len(ranked) else 0.0
    return float((ranked[cut] + below) / 2)


def _coordinate_ascent(probs: np.ndarray, labels: np.ndarray, common: float, passes: int) -> np.ndarray:
    """(C,) thresholds for the mean F1 of the rows: each class in turn gets the best of TRIED thresholds.

    A change of one class changes a row's F1 through two counts only, so a trial costs N operations.
    """
    rows, classes = probs.shape
    thresholds = np.full(classes, common)
    decided = probs >= common
    hits, predicted = (decided & labels).sum(1), decided.sum(1)
    actual = labels.sum(1)

    for _ in range(passes):
        for c in range(classes):
            other_hits, others = hits - (decided[:, c] & labels[:, c]), predicted - decided[:, c]
            values = np.unique(probs[:, c].astype(np.float64))
            midpoints = (values[1:] + values[:-1]) / 2
            trials = np.r_[thresholds[c], midpoints[:: max(1, len(midpoints) // TRIED)]]  # ties keep the current one
            scores = []
            for threshold in trials:
                chosen = probs[:, c] >= threshold
                total = others + chosen + actual
                f1 = np.divide(2.0 * (other_hits + (chosen & labels[:, c])), total, out=np.zeros(rows), where=total > 0)
                scores.append(f1.mean())
            thresholds[c] = trials[int(np.argmax(scores))]
            decided[:, c] = probs[:, c] >= thresholds[c]
            hits, predicted = other_hits + (decided[:, c] & labels[:, c]), others + decided[:, c]
    return thresholds
