"""A member's probabilities under a TTA policy, computed in chunks of rows, with cached per-row results.

Cross-fitting fits the same member on many overlapping sets of rows. The log loss of a row at a temperature, its
normaliser and the probability of its true class do not depend on the set. They are computed once and cached, N numbers
each; the probabilities themselves are never all in memory as float32.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property

import numpy as np

from competition.ensemble.calibration import best_step, label_losses, log_norms, temperature_at
from competition.ensemble.mixing import floored_logs, mix
from competition.ensemble.predictions import ViewPredictions

CHUNK_ENTRIES = 2_000_000  # entries (rows x classes) of one chunk
SAMPLE = 10_000  # a temperature is fitted on at most this many rows
IDENTITY = "identity"


def identity_view(predictions: ViewPredictions) -> str:
    """Name of the view of the untransformed image: "identity", or the first view of an external member without it."""
    return IDENTITY if IDENTITY in predictions.views else predictions.views[0]


def mix_views(
    predictions: ViewPredictions, policy: Mapping[str, float], mixing: str, rows: np.ndarray | slice | None = None
) -> np.ndarray:
    """(n, C) float32: the weighted mean over the views of a policy (name -> weight).  rows: None = all.

    A single view is returned unchanged.
    """
    parts = [predictions.view(name, rows) for name in policy]
    return parts[0] if len(parts) == 1 else mix(np.stack(parts), np.array(list(policy.values())), mixing)


def chunks(rows: int, classes: int) -> Iterator[slice]:
    """Slices of consecutive rows, each of at most CHUNK_ENTRIES entries, that cover all rows."""
    size = max(1, CHUNK_ENTRIES // classes)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


class MemberOutput:
    """One member under one policy.  labels: (N,) int, or (N, C) bool; a fit never uses labels of rows outside it."""

    def __init__(
        self, predictions: ViewPredictions, policy: Mapping[str, float], mixing: str, labels: np.ndarray
    ) -> None:
        self.predictions, self.policy, self.mixing, self.labels = predictions, policy, mixing, labels
        self.classes = predictions.probs.shape[2]  # C
        # Sampled without labels or folds, so that held-out labels have no influence.
        self._sample = np.sort(np.random.default_rng(0).permutation(len(labels))[:SAMPLE])
        self._losses: dict[int, np.ndarray] = {}  # step -> (sample,)
        self._norms: dict[int, np.ndarray] = {}  # step -> (N,)

    def probs(self, rows: np.ndarray | slice | None = None) -> np.ndarray:
        """(n, C) float32."""
        probs = mix_views(self.predictions, self.policy, self.mixing, rows)
        self.predictions.release()
        return probs

    @cached_property
    def true_probs(self) -> np.ndarray:
        """(N,) float32: the probability of each row's true class."""
        if len(self.policy) == 1:
            (name,) = self.policy
            view = self.predictions.views.index(name)
            probs = self.predictions.probs[np.arange(len(self.labels)), view, self.labels].astype(np.float32)
            self.predictions.release()
            return probs
        parts = ((self.probs(part), self.labels[part]) for part in chunks(len(self.labels), self.classes))
        return np.concatenate([probs[np.arange(len(labels)), labels] for probs, labels in parts])

    def temperature_step(self, train: np.ndarray) -> int:
        """Grid step of the temperature of least log loss on `train`, or a sample of it.  train: (N,) bool."""
        in_train = train[self._sample]

        def losses(steps: Sequence[int]) -> np.ndarray:
            new_steps, parts = [step for step in steps if step not in self._losses], []
            for part in chunks(len(self._sample), self.classes) if new_steps else ():
                rows, labels = self._sample[part], self.labels[self._sample[part]]
                if labels.ndim == 2:
                    parts.append(list(label_losses(self.probs(rows), labels, new_steps)))
                    continue
                logs = floored_logs(self.probs(rows))
                true_logs = logs[np.arange(len(labels)), labels].astype(np.float64)
                parts.append([log_norms(logs, t) - true_logs / t for t in map(temperature_at, new_steps)])
            self._losses |= {step: np.concatenate(column) for step, *column in zip(new_steps, *parts, strict=True)}
            return np.array([self._losses[step][in_train].mean(dtype=np.float64) for step in steps])

        return best_step(losses)

    def log_norm(self, step: int) -> np.ndarray:
        """(N,) float32: log of the sum over classes of p^(1/T)."""
        if step not in self._norms:
            parts = (floored_logs(self.probs(part)) for part in chunks(len(self.labels), self.classes))
            self._norms[step] = np.concatenate([log_norms(logs, temperature_at(step)) for logs in parts])
            self.predictions.release()
        return self._norms[step]

    def calibrated_true_probs(self, step: int) -> np.ndarray:
        """(N,) float32: the probability of each row's true class at a temperature of the grid."""
        if step == 0:
            return self.true_probs
        return np.exp(floored_logs(self.true_probs) / np.float32(temperature_at(step)) - self.log_norm(step))


class OutputCache:
    """Cache of one member's outputs, one per policy."""

    def __init__(self, predictions: ViewPredictions, mixing: str, labels: np.ndarray) -> None:
        self.predictions, self.mixing, self.labels = predictions, mixing, labels
        self._outputs: dict[tuple[tuple[str, float], ...], MemberOutput] = {}
        self.distinct_views = cache(self._distinct_views)  # of the instance, so that it is freed with it

    def with_policy(self, policy: Mapping[str, float]) -> MemberOutput:
        """The output under a policy, computed once."""
        key = tuple(policy.items())
        if key not in self._outputs:
            self._outputs[key] = MemberOutput(self.predictions, dict(policy), self.mixing, self.labels)
        return self._outputs[key]

    def identity_view(self) -> MemberOutput:
        """The output of the identity view alone."""
        return self.with_policy({identity_view(self.predictions): 1.0})

    def _distinct_views(self, same_below: float) -> list[str]:
        """The identity view, then every view whose probabilities differ from all earlier ones by `same_below` or more."""
        rows, _, classes = self.predictions.probs.shape
        sample = slice(0, min(64, rows))  # checked first: nearly always sufficient

        def differ(first: str, second: str) -> bool:
            views = (
                [self.predictions.view(name, part) for name in (first, second)]
                for part in (sample, *chunks(rows, classes))
            )
            return any(np.abs(a - b).max() >= same_below for a, b in views)

        distinct: list[str] = []
        for name in sorted(self.predictions.views, key=lambda view: view != identity_view(self.predictions)):
            if all(differ(name, other) for other in distinct):
                distinct.append(name)
        self.predictions.release()
        return distinct
