"""One screen of progress of a cluster: what each machine does, how much is done, the time left."""

import sys
import time
from contextlib import AbstractContextManager
from math import isinf

from competition.cluster.work import Status
from competition.preflight.planning import duration
from competition.report.console_table import table_lines

LINE_SECONDS = 30.0  # between two lines where stdout is no terminal
SCREEN_SECONDS = 0.5


class Screen(AbstractContextManager["Screen"]):
    """Redrawn in place on a terminal; elsewhere one line every half minute."""

    def __init__(self, verb: str) -> None:
        self._verb, self._last, self._drawn = verb, 0.0, 0
        self._is_terminal = sys.stdout.isatty()

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, status: Status) -> None:
        pause = SCREEN_SECONDS if self._is_terminal else LINE_SECONDS
        if time.monotonic() - self._last < pause:
            return
        self._last = time.monotonic()
        self.clear()
        lines = [summary(self._verb, status)]
        if self._is_terminal:
            rows = [(row.machine, row.task, f"{row.share:4.0%}", row.text) for row in status.rows]
            lines += table_lines(("machine", "task", "done", ""), rows) if rows else []
            self._drawn = len(lines)
        print("\n".join(lines), flush=True)

    def clear(self) -> None:
        """Remove what was drawn, so that a line can be printed."""
        if self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="", flush=True)
        self._drawn = 0


def summary(verb: str, status: Status) -> str:
    machines = len({row.machine for row in status.rows})
    if verb == "tune":  # a worker ends when the study does, which its trials' lines estimate
        return f"cluster: tune: {len(status.rows)} workers on {machines} machines, {status.done} have ended"
    left = "" if isinf(status.seconds_left) else f", about {duration(status.seconds_left)} left"
    return f"cluster: {verb}: {status.done} of {status.total} done, {len(status.rows)} running on {machines} machines{left}"
