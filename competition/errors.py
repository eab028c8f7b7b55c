"""One exception for everything a user can mend."""

from collections.abc import Iterable


class Refusal(ValueError):
    """What was found, what was expected, how to mend it: one sentence for the user, never a traceback."""
