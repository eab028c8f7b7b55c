"""Fault points: named places in the code where a test may kill the process, raise an error or wait."""

from collections.abc import Callable
from pathlib import Path

_reached: Callable[[str, str], None] | None = None


def fault_point(name: str, path: Path | str = "") -> None:
    """Do nothing, unless a test has called `at_points`.

    name: part and moment, such as "checkpoint.before_facts".  path: of the file that is written there, if there is one.
    """
    if _reached is not None:
        _reached(name, str(path))


def at_points(reached: Callable[[str, str], None] | None) -> None:
    """Call reached(name, path) at every point of this process; None: at no point. For tests only."""
    global _reached
    _reached = reached
