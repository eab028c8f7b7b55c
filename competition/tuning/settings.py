"""What a worker needs to know about its study, which folds a study uses for what, and which parameters SET states itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from competition.config.params import Dimension, Params
from competition.config.params_file import Override, states
from competition.config.search_space import AUGMENT, MEMBER_KEYS, Values


@dataclass(frozen=True)
class StudySettings:
    name: str  # equal for all workers of one study
    search: Mapping[str, Dimension]
    trials: int
    seed: int
    sampler: str
    pruner: str
    own_values: Values  # the member's own values, tried first
    warm_start: Sequence[Values] = ()  # tried next
    folds: Sequence[int] = ()  # whose labels take part in the choice, those behind the warm starts included
    grid: Sequence[Values] = ()  # for the sampler grid: every point
    hours: float = 0.0  # of all trials together, divided by the workers; 0 = no limit
    patience: int = 0  # finished trials without an improvement beyond noise; 0 = no limit
    workers: int = 1
    heartbeat: float = 20.0  # seconds
    retries: int = 1  # of a dead worker's trial with the same values

    @property
    def points(self) -> list[Values]:
        """Values of the first trials; the sampler draws those of the others."""
        first = [self.own_values, *self.warm_start]
        return first + [values for values in self.grid if values not in first]

    @property
    def total(self) -> int:
        """Number of trials: fewer than `trials` if a grid has fewer points."""
        return min(self.trials, len(self.points)) if self.grid else self.trials


def folds_used_in_tuning(params: Params) -> list[int]:
    """Folds whose labels take part in the choice of hyperparameters, by scoring a trial or by training it."""
    within_folds = params.tune.trained_on == "tune_folds"
    return sorted(set(params.tune.folds)) if within_folds else list(range(params.prepare.folds))


def overridden_keys(name: str, keys: Iterable[str], overrides: Sequence[Override]) -> set[str]:
    """Those of `keys` that an override (SET) sets for this member, or for all members, directly or within a block.

    Tuned values never replace them.
    """

    def is_set(key: str) -> bool:
        paths: list[tuple[str, ...]] = [("members", name, key)]
        if key not in MEMBER_KEYS:
            path = ("augment", key.removeprefix(AUGMENT)) if key.startswith(AUGMENT) else (key,)
            paths = [("train", *path), ("members", name, "train", *path)]
        return any(
            path[: len(override.path)] == override.path and states(override.value, path[len(override.path) :])
            for override in overrides
            for path in paths
        )

    return {key for key in keys if is_set(key)}
