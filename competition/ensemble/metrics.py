"""The metrics of image competitions, each equal to scikit-learn's, each greater-is-better.

A metric of labels (macro-F1, accuracy, kappa) is a function of four counts per class or per sample (`LabelCounts`), so
one definition serves the plain score, the bootstrap and the greedy search, which updates counts instead of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from competition.config.errors import UserError
from competition.config.plugins import LowerIsBetter, Plugins
from competition.ensemble import target_metrics
from competition.ensemble.target_metrics import mean_log_likelihoods, weighted_mean

# What a row's target is: one class of C (ordinal grades included), a set of the C classes, or a number.
TargetKind = Literal["single", "multi", "regression"]
# Rules without parameters; half: labels of probability 0.5 or more.
DEFAULT_RULES = {"single": "argmax", "multi": "half", "regression": "none"}
Weights = np.ndarray | None  # (R, N) row weights of R resamples
Function = Callable[[np.ndarray, np.ndarray], float]  # (labels, probs) -> a score; of the user
RowScore = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (labels, output) -> (N,)
WeightedScore = Callable[[np.ndarray, np.ndarray, Weights], np.ndarray]  # -> (R,), or a scalar without weights
FEWEST_DEFINED = 0.5  # share of the resamples that must have a score by the user's metric


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Counts from which metrics of labels are computed. Leading axes (...) may be members, resamples or offsets."""

    hits: np.ndarray  # (..., C) correctly predicted rows of the class
    predicted: np.ndarray  # (..., C) rows predicted as the class
    actual: np.ndarray  # (..., C) or (C,) rows of the class
    squares: np.ndarray  # (...) sum over rows of (label - predicted)^2

    def __add__(self, other: "LabelCounts") -> "LabelCounts":
        return LabelCounts(
            self.hits + other.hits,
            self.predicted + other.predicted,
            self.actual + other.actual,
            self.squares + other.squares,
        )


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. Scores are greater-is-better; `display` converts a score to the metric's usual sign.

    Exactly one of the three functions is set: `from_counts` for metrics of labels, `from_probs` for metrics of
    probabilities (or of the values of a regression), `from_decisions` for metrics of the (N, C) bool decisions of a
    multi-label competition. `target` says what the labels are: (N,) int, (N, C) bool or (N,) float.
    `best` and `worst` are the limits of the score in the usual sign; None if they are unknown or there are none.
    """

    name: str
    sign: int  # -1 if the usual number is smaller-is-better (log_loss)
    from_counts: Callable[[LabelCounts], np.ndarray] | None
    from_probs: WeightedScore | None
    target: TargetKind = "single"
    from_decisions: WeightedScore | None = None
    best: float | None = 1.0
    worst: float | None = 0.0
    by_rows: bool = False  # the user's own: each resample costs a call on a table of rows

    @property
    def needs_labels(self) -> bool:
        """True for a metric of labels (or multi-label decisions), False for a metric of probabilities."""
        return self.from_probs is None

    @property
    def ranks_rows(self) -> bool:
        """True if the order of all rows counts, so that rows of two members, each with a scale of its own, score less together."""
        return self.from_probs in (target_metrics.mean_column_auc, target_metrics.mean_average_precision)

    @property
    def scores_order(self) -> bool:
        """True if only the order of the rows by each label's probability counts, so that one scale of all log odds changes nothing.

        Not of classes that exclude each other: a temperature changes the order of the rows by the probability of a class.
        """
        return self.target == "multi" and self.ranks_rows

    @property
    def range(self) -> tuple[float, float]:
        """(lowest, highest) possible score in the usual sign; infinite where it is unknown or there is none."""
        low, high = (self.worst, self.best) if self.sign > 0 else (self.best, self.worst)
        return -np.inf if low is None else low, np.inf if high is None else high

    def output_of(self, probs: np.ndarray, predicted: np.ndarray | None = None) -> np.ndarray:
        """The output that this metric scores: (N,) labels, (N, C) decisions, or the (N, C) probabilities themselves.

        predicted: labels of a decision rule; None = the most probable class, or the labels of probability 0.5 or more.
        """
        if not self.needs_labels:
            return probs
        return default_labels(probs, self.target) if predicted is None else predicted

    def evaluate(self, labels: np.ndarray, output: np.ndarray, classes: int | None = None) -> float:
        """Score an output; greater is better.

        labels: (N,) int in 0..classes-1, or as `target` says.  output: (N,) int labels, (N, C) bool decisions, (N, C)
        probabilities or (N, 1) values of a regression; a metric of labels or decisions takes the default labels of
        probabilities.  classes: C, required for (N,) labels.
        """
        if self.from_counts is None:
            if output.ndim != 2 and self.by_rows and classes:
                output = np.eye(classes)[output]  # labels as certain probabilities
            return float(self.evaluate_weighted(labels, output, None))
        classes = output.shape[1] if output.ndim == 2 else classes
        assert classes is not None, "expected the number of classes with labels"
        predicted = output.argmax(1) if output.ndim == 2 else output
        return float(self.evaluate_counts(count_labels(labels, predicted, classes)))

    def evaluate_counts(self, counts: LabelCounts) -> np.ndarray:
        """(...) scores of a metric of labels, greater is better."""
        assert self.from_counts is not None, f"{self.name} is a metric of probabilities, not of labels"
        return self.from_counts(counts)

    def evaluate_weighted(
        self, labels: np.ndarray, output: np.ndarray, weights: Weights, classes: int = 0
    ) -> np.ndarray:
        """(R,) scores of R sets of row weights (R, N), or one score without weights.

        A metric of labels needs weights, (N,) labels as output, and the number of classes.
        """
        if self.from_counts is not None and weights is not None:
            return self.from_counts(label_counts_of_samples(labels, output, weights, classes))
        if self.from_decisions is not None:
            return self.from_decisions(labels, self.output_of(output) if output.dtype != bool else output, weights)
        if self.from_probs is None or output.ndim != 2:
            raise UserError(f"{self.name} is a metric of probabilities, not of labels")
        return self.from_probs(labels, output, weights)

    def display(self, score: float) -> float:
        """Convert a greater-is-better score to the metric's usual sign."""
        return self.sign * score


def default_labels(output: np.ndarray, target: TargetKind) -> np.ndarray:
    """Labels of an output without a fitted decision rule; an output of labels is returned as it is.

    output: (N, C) probabilities, (N,) int labels or (N, C) bool decisions.  Returns (N,) int, the most probable class, or
    (N, C) bool, probability >= 0.5.
    """
    if output.ndim == 1 or output.dtype == bool:
        return output
    return output >= 0.5 if target == "multi" else output.argmax(1)


def count_labels(labels: np.ndarray, predicted: np.ndarray, classes: int) -> LabelCounts:
    """Label counts of one or several sets of predictions.  labels: (N,) int.  predicted: (..., N) int in 0..classes-1."""
    leading = predicted.shape[:-1]
    sets = int(np.prod(leading, dtype=np.int64))
    flat = predicted.reshape(sets, len(labels))
    code = flat + classes * np.arange(sets)[:, None]
    error = (labels - flat).astype(np.float64)
    return LabelCounts(
        hits=np.bincount(code[flat == labels], minlength=sets * classes).reshape(*leading, classes),
        predicted=np.bincount(code.ravel(), minlength=sets * classes).reshape(*leading, classes),
        actual=np.bincount(labels, minlength=classes),
        squares=np.square(error).sum(1).reshape(leading),
    )


def label_counts_of_samples(labels: np.ndarray, predicted: np.ndarray, counts: np.ndarray, classes: int) -> LabelCounts:
    """Label counts of many samples of the same kinds of rows.

    labels, predicted: (U,) int, one per kind of row.  counts: (R, U) float, rows of each kind in each sample.
    Returns LabelCounts with leading axis R.
    """
    from scipy.sparse import csr_array

    counts, all_kinds, per_class = np.asarray(counts, np.float64), np.arange(len(labels)), []
    for kinds, class_of in ((np.flatnonzero(predicted == labels), labels), (all_kinds, predicted), (all_kinds, labels)):
        columns = csr_array((np.ones(len(kinds)), (class_of[kinds], kinds)), shape=(classes, len(labels)))
        per_class.append(np.asarray((columns @ counts.T).T))
    hits, predicted_rows, actual = per_class
    return LabelCounts(hits, predicted_rows, actual, squares=counts @ (predicted - labels).astype(np.float64) ** 2)


def macro_f1(t: LabelCounts, only_present: bool = False, classes: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Mean over all C classes; a class absent from both counts as 0, so folds and members share one denominator.

    Equals f1_score(average="macro", labels=range(C), zero_division=0).
    only_present: mean over the classes that occur in labels or predictions, as f1_score(average="macro"), scikit-learn's
    default. The same number where every class has a row.
    classes: (n,) int, the mean over these alone.
    """
    rows = (t.actual + t.predicted)[..., classes]
    f1 = 2.0 * t.hits[..., classes] / np.maximum(rows, 1)
    if only_present:
        return f1.sum(-1) / np.maximum(np.count_nonzero(rows, axis=-1), 1)
    return f1.mean(-1)


def _quadratic_kappa(t: LabelCounts) -> np.ndarray:
    """1 - observed / expected squared distance (Cohen 1968); 1 where both are 0.

    The expected distance needs only the marginals: sum_ij a_i b_j (i - j)^2 / N.
    """
    class_numbers = np.arange(t.predicted.shape[-1], dtype=np.float64)
    actual, predicted = np.asarray(t.actual, np.float64), np.asarray(t.predicted, np.float64)
    n = actual.sum(-1)
    expected = (
        predicted @ class_numbers**2
        + actual @ class_numbers**2
        - 2.0 * (predicted @ class_numbers) * (actual @ class_numbers) / n
    )
    return np.where(expected > 0, 1.0 - t.squares / np.where(expected > 0, expected, 1.0), 1.0)


def true_class(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """(..., N, C) -> (..., N): the probability of each row's true class, never 0.

    Clipped at the resolution of the dtype, as scikit-learn's log_loss does (float16 counts as float32).
    """
    own = probs[..., np.arange(len(labels)), labels]
    eps = np.finfo(np.float64 if probs.dtype == np.float64 else np.float32).eps
    return np.clip(own.astype(np.float64), eps, 1.0 - eps)


def _in_top_5(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """1.0 for a row with fewer than 5 classes before the true one, else 0.0; equal probabilities rank by class number."""
    own = probs[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(probs.shape[1]) < labels[:, None]
    hits = ((probs > own) | ((probs == own) & earlier)).sum(1) < 5
    return hits.astype(np.float64)


def _rmse(targets: np.ndarray, values: np.ndarray, weights: Weights) -> np.ndarray:
    return -np.sqrt(weighted_mean((values[:, 0].astype(np.float64) - targets) ** 2, weights))


def _mean(of_rows: RowScore) -> WeightedScore:
    """The score that is the mean over rows of `of_rows(labels, output)`."""
    return lambda labels, output, weights: weighted_mean(of_rows(labels, output), weights)


# A metric whose usual number is a loss: smaller is better, from 0 without limit.
_loss = partial(Metric, sign=-1, from_counts=None, best=0.0, worst=None)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("macro_f1", 1, macro_f1, None),
        Metric("macro_f1_present", 1, partial(macro_f1, only_present=True), None),
        Metric("accuracy", 1, lambda t: t.hits.sum(-1) / t.actual.sum(-1), None),
        Metric("quadratic_kappa", 1, _quadratic_kappa, None, worst=-1.0),
        _loss("log_loss", from_probs=_mean(lambda labels, probs: np.log(true_class(labels, probs)))),
        # The mean over columns of the ROC AUC of "is it this class" (Plant Pathology 2020).
        Metric("mean_column_auc", 1, None, target_metrics.mean_column_auc),
        Metric("top_5", 1, None, _mean(_in_top_5)),
        Metric("multilabel_macro_f1", 1, None, None, "multi", target_metrics.multilabel_macro_f1),
        Metric("samples_f1", 1, None, None, "multi", _mean(target_metrics.f1_of_rows)),
        Metric("mean_average_precision", 1, None, target_metrics.mean_average_precision, "multi"),
        Metric("multilabel_mean_column_auc", 1, None, target_metrics.mean_column_auc, "multi"),
        # The mean over rows and classes of the binary cross-entropy.
        _loss("multilabel_log_loss", from_probs=_mean(mean_log_likelihoods), target="multi"),
        _loss("rmse", from_probs=_rmse, target="regression"),
        _loss(
            "mae",
            from_probs=_mean(lambda targets, values: -np.abs(values[:, 0].astype(np.float64) - targets)),
            target="regression",
        ),
    )
}


def score_range(name: str) -> tuple[float, float]:
    """(lowest, highest) possible score of the metric of this name; infinite for a metric that is not in METRICS."""
    return METRICS[name].range if name in METRICS else (-np.inf, np.inf)


def metric_named(name: str, plugins: Plugins) -> Metric:
    """The metric of this name, the project's or the user's. Raises UserError for an unknown name.

    The user's is one function of labels (N,) int and probabilities (N, C), without weights; greater is better, unless it
    is wrapped in LowerIsBetter.
    """
    value: Function | LowerIsBetter | None = plugins.named("METRICS", name, METRICS)
    if value is not None:
        function, sign = (value.function, -1) if isinstance(value, LowerIsBetter) else (value, 1)
        score = _user_score(plugins, name, function, sign)
        return Metric(name, sign, None, score, best=None, worst=None, by_rows=True)
    if name not in METRICS:
        raise UserError(f"metric '{name}' is not known; expected one of {', '.join([*METRICS, *plugins.metrics])}")
    return METRICS[name]


def _user_score(plugins: Plugins, name: str, function: Function, sign: int) -> WeightedScore:
    """The score of a metric that the user wrote as one function of labels and probabilities: sign * function.

    labels: (N,) int.  probs: (N, C).  sign: -1 if lower is better.  The function knows no weights, so a resample is a table of rows,
    drawn as often as the weights say. A resample without a score counts as the mean of the others. UserError if most have none,
    or if the rows have none.
    """
    what = f"METRICS[{name!r}]"

    def score(labels: np.ndarray, probs: np.ndarray) -> float:
        value: Any = plugins.call(what, function, labels, probs)
        if np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number) and np.isfinite(value):
            return sign * float(value)
        returned = f"an array of shape {np.shape(value)}" if np.ndim(value) else repr(value)
        raise UserError(plugins.problem(what, f"it returned {returned[:80]}; one finite number was expected"))

    def score_rows(labels: np.ndarray, probs: np.ndarray, weights: Weights) -> np.ndarray:
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
