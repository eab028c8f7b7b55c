"""Progress with the time left: a line that moves on a terminal, lines that stay elsewhere."""

import sys

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


def progress_bar(total: int | None, what: str) -> Bar:
    """Progress with the time left, on stderr."""
    return Bar(
        total=total,
        desc=what,
        mininterval=0.2 if Bar.watched else 30,
        leave=False,
        delay=1,
        ncols=None if Bar.watched else 100,
    )
