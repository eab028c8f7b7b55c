"""What a worker needs to know about its study, and which parameters SET states itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from competition.config.params import Tune
from competition.config.params_file import Override, states
from competition.config.search_space import AUGMENT, MEMBER_KEYS, Values, grid


@dataclass(frozen=True)
class StudySettings:
    name: str  # equal for all workers of one study
    tune: Tune
    own_values: Values  # the member's own values, tried first
    warm_start: Sequence[Values] = ()  # tried next
    folds: Sequence[int] = ()  # whose labels take part in the choice, those behind the warm starts included
    workers: int = 1  # processes that share the time limit

    @cached_property
    def points(self) -> list[Values]:
        """Values of the first trials; the sampler draws those of the others. For the sampler grid every point."""
        first = [self.own_values, *self.warm_start]
        points = grid(self.tune.search) if self.tune.sampler == "grid" else []
        return first + [values for values in points if values not in first]

    @property
    def total(self) -> int:
        """Number of trials: fewer than tune.trials if a grid has fewer points."""
        return min(self.tune.trials, len(self.points)) if self.tune.sampler == "grid" else self.tune.trials


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
