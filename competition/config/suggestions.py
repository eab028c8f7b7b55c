"""The "did you mean" part of messages about unknown names."""

import difflib
from collections.abc import Iterable

MAX_LISTED = 30  # names


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the most similar choice, else "; known are ..." for a short list, else "".

    `word` itself is never suggested.
    """
    names = [choice for choice in choices if choice != word]
    similar = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if similar:
        return f"; did you mean '{similar[0]}'?"
    return f"; known are {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else ""
