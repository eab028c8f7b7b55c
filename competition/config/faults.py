"""Fault points: named places in the code where a test may kill the process, raise an error or wait."""

from collections.abc import Callable
from pathlib import Path

# Called with the name and the path of every point of this process. Set by tests/faults/inject alone.
reached: Callable[[str, str], None] | None = None


def fault_point(name: str, path: Path | str = "") -> None:
    """Do nothing, unless a test has set `reached`.

    name: part and moment, such as "checkpoint.before_facts".  path: of the file that is written there, if there is one.
    """
    if reached is not None:
        reached(name, str(path))
