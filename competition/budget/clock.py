"""The time that a user states, and what is left of it."""

import time
from dataclasses import dataclass

from competition.config.errors import UserError

HOURS = {"quick": 0.1, "good": 1.0, "best": 8.0}  # names of budgets


@dataclass(frozen=True)
class Clock:
    """Wall time of a budget."""

    seconds: float
    started: float  # time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds; negative once the budget is exceeded."""
        return self.seconds - self.spent


def start_clock(hours: float, name: str) -> Clock:
    """A clock that starts now.  hours: 0 = those of the name.  Raises UserError without a positive time."""
    stated = hours or HOURS.get(name, 0.0)
    if not 0 < stated < 10_000:
        names = ", ".join(f"BUDGET={one} ({value:g} h)" for one, value in HOURS.items())
        raise UserError(f"HOURS={stated:g}: expected a positive number of hours, e.g. HOURS=0.5, or {names}")
    return Clock(3600.0 * stated, time.monotonic())
