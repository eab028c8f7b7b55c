"""The error classes for mistakes that the user can correct, and a helper for their messages."""

from collections.abc import Iterable, Sequence

Key = str | int  # of a mapping, or the position in a list


class UserError(ValueError):
    """Error caused by user input, shown as one sentence without a traceback: the problem, what was expected, the remedy."""


class InvalidParameter(Exception):
    """A parameter that fails validation. `load_params` adds the file and the line and raises a UserError.

    keys: path of the parameter, e.g. ("train", "epochs") or ("tune", "folds", 1).  conflicts_with: path of another one
    that does not fit to it, which may be in another file.
    """

    def __init__(self, keys: Sequence[Key], problem: str, conflicts_with: Sequence[Key] = ()) -> None:
        self.keys, self.problem, self.conflicts_with = tuple(keys), problem, tuple(conflicts_with)


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 image", "2,000 images"; plural: of a noun that takes no s alone ("classes")."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def first_few(names: Iterable[object], most: int = 5) -> str:
    """List the first `most` names for a message: 'a', 'b', 'c' and 17 more."""
    quoted = [repr(str(name)) for name in names]
    rest = f" and {len(quoted) - most:,} more" if len(quoted) > most else ""
    return ", ".join(quoted[:most]) + rest
