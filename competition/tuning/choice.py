"""The result of a study: its best trial, kept only if it beats the member's own values on predictions it was not chosen on.

Trials are Optuna's. This module does not import Optuna, so that reading a result stays fast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from competition.config.search_space import CHOSEN_IN_EACH_FOLD
from competition.ensemble.bootstrap import Evaluation, resampled
from competition.ensemble.metrics import Metric
from competition.tuning.settings import StudySettings

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

RESAMPLES = 400
ORIGIN = "retry_of"  # user attribute of a trial that repeats another one: the number of that one


@dataclass(frozen=True)
class TrialGain:
    """Difference of two settings of a member, greater is better, on folds and seeds that chose neither."""

    difference: float
    error: float  # standard error, over rows and over seeds
    seeds: int
    rows: int

    @property
    def is_gain(self) -> bool:
        """True if the difference is more than its standard error."""
        return self.difference > self.error


def gain_over_own_values(
    labels: np.ndarray,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    metric: Metric,
    classes: int,
    seed: int,
) -> TrialGain:
    """Compare out-of-fold probabilities of the same rows, one pair for each training seed.

    labels: (N,).  before, after: (N, C) each.  The rows' part of the error is that of the mean over seeds; all
    predictions are scored on the same resamples. With one seed the spread over seeds is unknown and counts as 0.
    """
    outputs = [metric.output_of(probs) for pair in zip(before, after, strict=True) for probs in pair]
    scores = np.stack(resampled(labels, outputs, Evaluation(metric, classes, RESAMPLES, seed)))  # (2S, R)
    by_rows = float((scores[1::2] - scores[::2]).mean(0).std())
    values = np.array([metric.evaluate(labels, output, classes) for output in outputs])
    differences = values[1::2] - values[::2]
    seeds = len(differences)
    by_seeds = float(differences.std(ddof=1)) / seeds**0.5 if seeds > 1 else 0.0
    return TrialGain(float(differences.mean()), hypot(by_rows, by_seeds), seeds, len(labels))


def origin_of(trial: "Trial | FrozenTrial") -> int:
    """Number of the trial, or of the failed one that it repeats; 0 is the trial of the member's own values."""
    return int(trial.user_attrs.get(ORIGIN, trial.number))


def finished_trials(trials: Sequence["FrozenTrial"], settings: StudySettings) -> list["FrozenTrial"]:
    """Trials that are complete or pruned, in the order of their numbers; of more than `total` the first ones."""
    finished = [trial for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")]
    first = sorted(finished, key=origin_of)[: settings.total]
    return sorted(first, key=lambda trial: trial.number)


def score_of(trial: "FrozenTrial") -> float:
    """Score of a complete trial; -inf for all others and for scores that are not finite."""
    score = trial.values[0] if trial.state.name == "COMPLETE" else -inf
    return float(score) if isfinite(score) else -inf


def best_trial(trials: Sequence["FrozenTrial"]) -> "FrozenTrial | None":
    """The complete trial with the highest score, the earliest among equals; None if no trial is complete."""
    return max((trial for trial in trials if score_of(trial) > -inf), key=score_of, default=None)


def limit_reached(trials: Sequence["FrozenTrial"], settings: StudySettings) -> str:
    """Why the study ends before its last trial, or "".  trials: all of the study."""
    finished = finished_trials(trials, settings)
    seconds = sum(trial.duration.total_seconds() for trial in finished if trial.duration)
    hours = settings.tune.hours
    is_over = hours and seconds / settings.workers >= hours * 3600
    return f"tune.hours: {hours:g} h are used" if is_over else ""


def format_values(values: Mapping[str, object]) -> str:
    """learning_rate 0.0012, flip horizontal"""
    return ", ".join(f"{key} {format_value(value)}" for key, value in values.items())


def format_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value == CHOSEN_IN_EACH_FOLD:
        return "chosen in each fold"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
