"""The error class for mistakes that the user can correct, and a helper for its messages."""

from collections.abc import Iterable


class UserError(ValueError):
    """Error caused by user input, shown as one sentence without a traceback: the problem, what was expected, the remedy."""


def first_few(names: Iterable[object], most: int = 5) -> str:
    """List the first `most` names for a message: 'a', 'b', 'c' and 17 more."""
    quoted = [repr(str(name)) for name in names]
    rest = f" and {len(quoted) - most:,} more" if len(quoted) > most else ""
    return ", ".join(quoted[:most]) + rest
