"""Lines on stdout and stderr, and what is in them. A reader that stops reading (`make runs | head`) ends the process quietly."""

import os
import sys
from typing import TextIO

from competition.files.manifest import display_path

__all__ = ["discard_output", "display_path", "plural", "print_line", "printable"]

CLOSED_PIPE_EXIT = 141  # as shells report a program that SIGPIPE ended


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Print a line at once.  stream: None = stdout.  Exits with 141 if nobody reads it any more.

    The signal itself stays ignored, as Python starts: it would also end a process whose network connection breaks.
    """
    try:
        print(line, file=stream or sys.stdout, flush=True)
    except BrokenPipeError:
        discard_output()
        sys.exit(CLOSED_PIPE_EXIT)


def discard_output() -> None:
    """Lead stdout and stderr to the null device, so that nothing that is still in their buffers becomes an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(null, stream.fileno())


def plural(count: int, noun: str) -> str:
    """ "1 session", "2 sessions" """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Replace control characters in text from outside by "?"."""
    return "".join(character if character.isprintable() else "?" for character in text)
