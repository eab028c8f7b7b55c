"""Which searched parameters of a member SET states itself; tuned values never replace them."""

from collections.abc import Iterable, Sequence

from competition.config.params_file import Override, states
from competition.config.search_space import AUGMENT, MEMBER_KEYS


def overridden_keys(name: str, keys: Iterable[str], overrides: Sequence[Override]) -> set[str]:
    """Those of `keys` that an override sets for this member, or for all members."""
    return {key for key in keys if any(_sets(override, path) for override in overrides for path in _paths(name, key))}


def _paths(name: str, key: str) -> list[tuple[str, ...]]:
    """Paths of a searched parameter in the parameter file."""
    if key in MEMBER_KEYS:
        return [("members", name, key)]
    path = ("augment", key.removeprefix(AUGMENT)) if key.startswith(AUGMENT) else (key,)
    return [("train", *path), ("members", name, "train", *path)]


def _sets(override: Override, path: tuple[str, ...]) -> bool:
    """Return True if an override sets the parameter at `path`, directly or within a block."""
    depth = len(override.path)
    return path[:depth] == override.path and states(override.value, path[depth:])
