"""Progress with the time left: a line that moves on a terminal, lines that stay elsewhere."""

import sys
from types import TracebackType

from tqdm import tqdm


class Bar(tqdm):
    """One line that moves on a terminal; where nobody watches, a whole line every half minute."""

    watched = sys.stderr.isatty()
    disable: bool
    total: float | None

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self.watched:
            super().display(msg, pos)
        elif msg is None and self.n:
            print(str(self), file=sys.stderr, flush=True)

    def clear(self, nolock: bool = False) -> None:
        if self.watched:
            super().clear(nolock)

    def close(self) -> None:
        self.disable = self.disable or not self.watched  # no last line where lines stay
        super().close()

    def update_to(self, done: int, total: int = 0) -> None:
        """Set where it stands: the callback that library functions take."""
        if total and total != self.total:
            self.total = total
        self.update(done - self.n)


def progress_bar(total: int | None, what: str, unit: str = "it") -> Bar:
    """Progress with the time left, on stderr. unit: "B" = bytes, shown as kB, MB and MB/s."""
    return Bar(
        total=total,
        desc=what,
        mininterval=0.2 if Bar.watched else 30,
        leave=False,
        delay=1,
        ncols=None if Bar.watched else 100,
        unit=unit,
        unit_scale=unit == "B",
    )


class ByteSteps:
    """One bar of bytes after the other, each with its own rate: downloading, checking, unpacking."""

    def __init__(self) -> None:
        self.step, self.bar = "", None  # type: tuple[str, Bar | None]

    def __enter__(self) -> "ByteSteps":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, step: str, done: int, total: int) -> None:
        """Set where `step` stands: the callback that library functions take. done, total: bytes; total 0 = unknown."""
        if self.bar is None or step != self.step:
            if self.bar is not None:
                self.bar.close()
            self.step, self.bar = step, progress_bar(total or None, step, "B")
            # What an earlier run left is no part of this run's speed.
            self.bar.initial = self.bar.n = self.bar.last_print_n = done
        self.bar.update_to(done, total)
