"""Progress with the remaining time: a bar on a terminal (rich), a line every half minute elsewhere."""

import sys
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar

from pipelines.terminal.output import print_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY = 1.0  # seconds before anything is shown
LINE_SECONDS = 30.0  # between two lines where there is no terminal
REDRAWS = 4  # per second


class Bar(AbstractContextManager["Bar"]):
    """Progress of one task, with the remaining time, on stderr.

    A message printed by `Job.echo` removes the bar; the next update draws it again.
    """

    is_terminal = sys.stderr.isatty()
    is_quiet: ClassVar[bool] = False  # another process shows the progress of both
    shown: ClassVar[set["Bar"]] = set()  # on the terminal now

    def __init__(self, total: int | None, description: str, unit: str = "") -> None:
        """total: None = unknown.  unit: what is counted, such as "steps"; "B" = bytes, shown as MB and MB/s."""
        self.total, self.description, self.unit = total, description, unit
        self.done, self.text = 0, ""  # text: behind the bar, shown with the next update
        self.first = 0  # the position that an earlier process reached; it does not count towards this one's speed
        self.started = self.printed = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID

    def update(self, steps: int = 1) -> None:
        self.update_to(self.done + steps)

    def update_to(self, done: int, total: int = 0) -> None:
        """Set the position and, unless it is 0, the total: the callback of library functions."""
        self.done, self.total = done, total or self.total
        self.refresh()

    def update_step(self, step: str, done: int, total: int) -> None:
        """Set the position of a step, which has a bar and a rate of its own: the callback of library functions.

        done, total: bytes; total 0 = unknown.
        """
        if step != self.description:
            self.__exit__()
            self.description, self.total, self.first = step, None, done
            self.started = self.printed = time.monotonic()
        self.update_to(done, total)

    def refresh(self) -> None:
        """Show the bar, or a line if there is no terminal and one is due."""
        now = time.monotonic()
        if self.is_quiet or now - self.started < DELAY:
            return
        if not self.is_terminal:
            if now - self.printed >= LINE_SECONDS:
                self.printed = now
                print_line(self.line(now), sys.stderr)
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            console = Console(stderr=True, force_terminal=True)  # NO_COLOR is read by rich
            self._progress = Progress(
                BarColumn(),
                TextColumn("{task.description}", markup=False),
                console=console,
                transient=True,
                refresh_per_second=REDRAWS,
                redirect_stdout=False,  # stdout may be a file
                redirect_stderr=False,
            )
            self._task = self._progress.add_task("")
        self._progress.update(self._task, description=self.line(now), completed=self.done, total=self.total)
        if not self._progress.live.is_started:  # a thread of rich redraws it
            self._progress.start()
            self.shown.add(self)

    def line(self, now: float) -> str:
        """cnn: 240 of 960 steps (25%), 47 s, 141 s left, 5.1/s; fold 1"""
        scale, unit = (1e6, " MB") if self.unit == "B" else (1, f" {self.unit}" if self.unit else "")
        form = ",.1f" if self.unit == "B" else ",.0f"
        position = f"{self.done / scale:{form}}" + (f" of {self.total / scale:{form}}" if self.total else "") + unit
        seconds = max(now - self.started, 1e-9)
        speed = (self.done - self.first) / seconds
        parts = [f"{position} ({self.done / self.total:.0%})" if self.total else position, f"{seconds:.0f} s"]
        if self.total and speed > 0:
            parts.append(f"{(self.total - self.done) / speed:.0f} s left")
        parts.append(f"{speed / scale:.3g}{unit if self.unit == 'B' else ''}/s")
        return f"{self.description}: {', '.join(parts)}{f'; {self.text}' if self.text else ''}"

    def clear(self) -> None:
        """Remove the bar from the terminal until the next update."""
        self.shown.discard(self)
        if self._progress is not None:
            self._progress.stop()

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._progress = None
