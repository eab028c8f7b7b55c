"""Fault points: named places in the code where a test may kill the process, raise an error or wait."""

from collections.abc import Callable
from pathlib import Path

_reached: Callable[[str, str], None] | None = (
    None  # set by tests/faults/inject alone; called at every point of the process
)


def fault_point(name: str, path: Path | str = "") -> None:
    """Do nothing, unless a test has set `_reached`.

    name: part and moment, such as "checkpoint.before_facts".  path: of the file that is written there, if there is one.
    """
    if _reached is not None:
        _reached(name, str(path))
