"""One exception for everything a user can mend."""

from collections.abc import Iterable


class UserError(ValueError):
    """What was found, what was expected, how to mend it: one sentence for the user, never a traceback."""


def first(names: Iterable[object], most: int = 5) -> str:
    """The first few of many names, for a message: 'a', 'b', 'c' and 17 more."""
    listed = [repr(str(name)) for name in names]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
