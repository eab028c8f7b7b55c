"""The time that a user states, and what is left of it."""

import time
from dataclasses import dataclass, field

from competition.config.errors import UserError

MEASURED_BATCHES = 2  # that tell the speed of a network
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


@dataclass
class Pace:
    """Speed of a pass over images, without its first batch, which is compiled."""

    times: list[tuple[float, int]] = field(default_factory=list)  # before each batch: (time.monotonic(), images done)

    def add(self, done: int) -> None:
        """Note that a batch begins.  done: images under one view, of all parts and views so far."""
        if not self.times or done > self.times[-1][1]:
            self.times.append((time.monotonic(), done))

    @property
    def each(self) -> float:
        """Seconds of one image under one view; 0 until they are known."""
        if len(self.times) <= MEASURED_BATCHES + 1:
            return 0.0
        (started, before), (now, done) = self.times[1], self.times[-1]
        return (now - started) / (done - before)


def start_clock(hours: float, name: str) -> Clock:
    """A clock that starts now.  hours: 0 = those of the name.  Raises UserError without a positive time."""
    stated = hours or HOURS.get(name, 0.0)
    if not 0 < stated < 10_000:
        names = ", ".join(f"BUDGET={one} ({value:g} h)" for one, value in HOURS.items())
        raise UserError(f"HOURS={stated:g}: expected a positive number of hours, e.g. HOURS=0.5, or {names}")
    return Clock(3600.0 * stated, time.monotonic())
