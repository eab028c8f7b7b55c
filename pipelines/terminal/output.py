"""Lines on stdout and stderr, and what is in them. A reader that stops reading (`make runs | head`) ends the process quietly."""

import os
import re
import sys
from typing import TextIO

from competition.config.redaction import printable
from competition.files.manifest import display_path
from pipelines.terminal.options import FIELDS, flag_of, variable_of

__all__ = ["as_called", "discard_output", "display_path", "print_line", "printable"]

CLOSED_PIPE_EXIT = 141  # as shells report a program that SIGPIPE ended
GOALS = "GOLDFOLD_GOALS"  # variable with the targets that make was asked for; absent without make
MAKE_CALL = re.compile(r"(?<=`)make ((?!beam|test|clean|fresh|help|docs|fuzz|soak)[a-z][a-z-]*(?: [a-z][a-z-]*)*)")
VARIABLE = re.compile(r"\b([A-Z][A-Z_]*)=(\"[^\"]*\"|'[^']*'|[\w@:./,*-]*[\w*])")


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Print a line at once.  stream: None = stdout.  Exits with 141 if nobody reads it any more.

    The signal itself stays ignored, as Python starts: it would also end a process whose network connection breaks.
    """
    try:
        print(printable(as_called(line), keep="\n\t"), file=stream or sys.stdout, flush=True)
    except BrokenPipeError:
        discard_output()
        sys.exit(CLOSED_PIPE_EXIT)


def discard_output() -> None:
    """Lead stdout and stderr to the null device, so that nothing that is still in their buffers becomes an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(null, stream.fileno())


def as_called(line: str) -> str:
    """The line with commands in the words of the caller: `make train FOLD=2` is `goldfold train --fold 2` without make."""
    if GOALS in os.environ:
        return line
    names = {variable_of(name).removeprefix("GOLDFOLD_"): name for name in FIELDS}

    def flag(match: re.Match[str]) -> str:
        if match[1] not in names:
            return match[0]
        name = names[match[1]]
        return flag_of(name) if isinstance(FIELDS[name].default, bool) else f"{flag_of(name)} {match[2]}"

    line = MAKE_CALL.sub(lambda match: f"goldfold {match[1].replace(' ', ' + ')}", line)
    return VARIABLE.sub(flag, line)
