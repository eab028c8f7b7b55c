"""A member's probabilities under a policy, computed in chunks of rows, with the per-row results that many fits share.

Cross-fitting fits the same member on many overlapping sets of rows. What a row contributes does not depend on the set:
the loss of a row at a temperature, its normaliser, the probability of its class. These are computed once and kept, N
numbers each; the probabilities themselves are never all in memory as float32.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from competition.ensemble.calibration import best_step, floored_logs, log_norms, temperature_at
from competition.ensemble.mixing import mix
from competition.ensemble.predictions import ViewPredictions

CHUNK_ENTRIES = 2_000_000  # entries (rows x classes) of one chunk
SAMPLE = 10_000  # a temperature is fitted on at most this many rows
PLAIN = "identity"


def plain_view(views: ViewPredictions) -> str:
    """The first view is the plain one unless one is named "identity" (a foreign member's have any names)."""
    return PLAIN if PLAIN in views.views else views.views[0]


def mix_views(
    views: ViewPredictions, policy: Mapping[str, float], mixing: str, rows: np.ndarray | slice | None = None
) -> np.ndarray:
    """(n, C) float32: the mean over the views of a policy (name -> weight), for the row numbers `rows` or all.

    The views are found by name. One view alone is given as it is.
    """
    parts = [views.view(name, rows) for name in policy]
    return parts[0] if len(parts) == 1 else mix(np.stack(parts), np.array(list(policy.values())), mixing)


def chunks(rows: int, classes: int) -> Iterator[slice]:
    """Slices of consecutive rows that cover all, each of at most CHUNK_ENTRIES entries."""
    size = max(1, CHUNK_ENTRIES // classes)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


class MemberOutput:
    """One member under one policy.  labels: (N,) int; those of rows outside a fit are never used by it."""

    def __init__(self, views: ViewPredictions, policy: Mapping[str, float], mixing: str, labels: np.ndarray) -> None:
        self.views, self.policy, self.mixing, self.labels = views, policy, mixing, labels
        rows = len(labels)
        # Chosen without labels or folds, so that no held-out row has a say in it.
        self._sample = np.sort(np.random.default_rng(0).permutation(rows)[:SAMPLE])
        self._losses: dict[int, np.ndarray] = {}  # step -> (sample,)
        self._norms: dict[int, np.ndarray] = {}  # step -> (N,)

    def probs(self, rows: np.ndarray | slice | None = None) -> np.ndarray:
        """(n, C) float32."""
        probs = mix_views(self.views, self.policy, self.mixing, rows)
        self.views.release()
        return probs

    @cached_property
    def own(self) -> np.ndarray:
        """(N,) float32: the probability of each row's own class."""
        if len(self.policy) == 1:
            (name,) = self.policy
            at = self.views.views.index(name)
            own = self.views.probs[np.arange(len(self.labels)), at, self.labels].astype(np.float32)
            self.views.release()
            return own
        return np.concatenate([self._own(self.probs(part), part) for part in self._chunks()])

    def _own(self, values: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
        return values[np.arange(len(values)), self.labels[rows]]

    def _chunks(self) -> Iterator[slice]:
        return chunks(len(self.labels), self.views.probs.shape[2])

    def temperature_step(self, train: np.ndarray) -> int:
        """Grid step of the temperature of least log loss on `train`, or a sample of it.  train: (N,) bool."""
        at = train[self._sample]

        def losses(steps: Sequence[int]) -> np.ndarray:
            self._compute_losses([step for step in steps if step not in self._losses])
            return np.array([self._losses[step][at].mean(dtype=np.float64) for step in steps])

        return best_step(losses)

    def _compute_losses(self, steps: Sequence[int]) -> None:
        if not steps:
            return
        parts = []
        for part in chunks(len(self._sample), self.views.probs.shape[2]):
            rows = self._sample[part]
            logs = floored_logs(self.probs(rows))
            own = self._own(logs, rows).astype(np.float64)
            parts.append([log_norms(logs, t) - own / t for t in map(temperature_at, steps)])
        self.views.release()
        self._losses |= {step: np.concatenate(column) for step, *column in zip(steps, *parts, strict=True)}

    def log_norm(self, step: int) -> np.ndarray:
        """(N,) float32: log of the sum over classes of p^(1/T)."""
        if step not in self._norms:
            parts = (floored_logs(self.probs(part)) for part in self._chunks())
            self._norms[step] = np.concatenate([log_norms(logs, temperature_at(step)) for logs in parts])
            self.views.release()
        return self._norms[step]

    def calibrated_own(self, step: int) -> np.ndarray:
        """(N,) float32: the probability of each row's own class at a temperature of the grid."""
        if step == 0:
            return self.own
        return np.exp(floored_logs(self.own) / np.float32(temperature_at(step)) - self.log_norm(step))


class OutputCache:
    """The outputs of one member under every policy that was asked for."""

    def __init__(self, views: ViewPredictions, mixing: str, labels: np.ndarray) -> None:
        self.views, self.mixing, self.labels = views, mixing, labels
        self._outputs: dict[tuple[tuple[str, float], ...], MemberOutput] = {}
        self._differ: dict[float, list[str]] = {}

    def under(self, policy: Mapping[str, float]) -> MemberOutput:
        key = tuple(policy.items())
        if key not in self._outputs:
            self._outputs[key] = MemberOutput(self.views, dict(policy), self.mixing, self.labels)
        return self._outputs[key]

    def plain(self) -> MemberOutput:
        return self.under({plain_view(self.views): 1.0})

    def views_that_differ(self, same_below: float) -> list[str]:
        if same_below not in self._differ:
            self._differ[same_below] = views_that_differ(self.views, plain_view(self.views), same_below)
            self.views.release()
        return self._differ[same_below]


def views_that_differ(views: ViewPredictions, plain: str, same_below: float) -> list[str]:
    """`plain` first, then every view that says something no earlier one says: five equal passes are one view."""
    rows, _, classes = views.probs.shape

    def differ(one: str, other: str) -> bool:
        few = [slice(0, min(64, rows))]  # nearly always enough to tell
        return any(
            np.abs(views.view(one, part) - views.view(other, part)).max() >= same_below
            for part in (*few, *chunks(rows, classes))
        )

    kept: list[str] = []
    for name in sorted(views.views, key=lambda view: view != plain):
        if all(differ(name, other) for other in kept):
            kept.append(name)
    return kept
