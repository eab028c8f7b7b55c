"""Progress bars with the remaining time: redrawn on a terminal, printed as separate lines elsewhere."""

import sys
from types import TracebackType

from tqdm import tqdm


class Bar(tqdm):
    """A bar redrawn in place on a terminal; a new line every half minute if stderr is no terminal."""

    is_terminal = sys.stderr.isatty()
    disable: bool
    total: float | None

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self.is_terminal:
            super().display(msg, pos)
        elif msg is None and self.n:
            print(str(self), file=sys.stderr, flush=True)

    def clear(self, nolock: bool = False) -> None:
        if self.is_terminal:
            super().clear(nolock)

    def close(self) -> None:
        self.disable = self.disable or not self.is_terminal  # tqdm would print one more line
        super().close()

    def update_to(self, done: int, total: int = 0) -> None:
        """Set the position and, unless it is 0, the total: the callback of library functions."""
        if total and total != self.total:
            self.total = total
        self.update(done - self.n)


def progress_bar(total: int | None, description: str, unit: str = "it") -> Bar:
    """Bar with the remaining time, on stderr.  total: None = unknown.  unit: "B" = bytes, shown as kB, MB and MB/s."""
    return Bar(
        total=total,
        desc=description,
        mininterval=0.2 if Bar.is_terminal else 30,
        leave=False,
        delay=1,
        ncols=None if Bar.is_terminal else 100,
        unit=unit,
        unit_scale=unit == "B",
    )


class ByteSteps:
    """Consecutive byte bars, one per step (downloading, checking, unpacking), each with its own rate."""

    def __init__(self) -> None:
        self.step, self.bar = "", None  # type: tuple[str, Bar | None]

    def __enter__(self) -> "ByteSteps":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, step: str, done: int, total: int) -> None:
        """Set the position of `step`: the callback of library functions.  done, total: bytes; total 0 = unknown."""
        if self.bar is None or step != self.step:
            if self.bar is not None:
                self.bar.close()
            self.step, self.bar = step, progress_bar(total or None, step, "B")
            # Bytes of an earlier run do not count towards this run's speed.
            self.bar.initial = self.bar.n = self.bar.last_print_n = done
        self.bar.update_to(done, total)
