"""Lines on stdout and stderr, and what is in them. A reader that stops reading (`make runs | head`) ends the process quietly."""

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from competition.config.params_file import BUDGET_FILE
from competition.config.redaction import printable
from competition.config.secrets import public_sets
from competition.files.manifest import display_path
from pipelines.terminal.options import FIELDS, flag_of, make_name
from pipelines.terminal.verbs import VERBS

__all__ = ["as_called", "display_path", "print_line", "printable", "table_lines", "with_params"]

CLOSED_PIPE_EXIT = 141  # as shells report a program that SIGPIPE ended
GOALS = "GOLDFOLD_GOALS"  # variable with the targets that make was asked for; absent without make
NAMES = "|".join(sorted(VERBS, key=len, reverse=True))
MAKE_CALL = re.compile(rf"\bmake ((?:{NAMES})(?: (?:{NAMES}))*)(?![\w-])")
VARIABLE = re.compile(r"\b([A-Z][A-Z_]*)=(\"[^\"]*\"|'[^']*'|[\w@:./,*-]*[\w*]|\.\.\.)")
BOLD, YELLOW, PLAIN = "\033[1m", "\033[33m", "\033[0m"
VERDICT = re.compile(r"\ba (?:gain|loss)\b|\bnoise\b")  # in rows of tables
VERDICT_COLOURS = {"a gain": "\033[32m", "a loss": "\033[31m", "noise": "\033[2m"}  # green, red, dim
SHORT_COMMAND = re.compile(r"`[^`]{1,40}`")  # kept in one line, so that it can be copied
LONGEST_SET = 200  # characters of SET that a printed command repeats
OF_BUDGET = re.compile(f"PARAMS=.*{BUDGET_FILE.as_posix()}")
COLUMN_GAP = 2  # spaces between the columns of a table
KEPT_SPACE = "\ue000"  # of the private use area: stands for a space at which no line is broken
WARNINGS = ("WARNING", "OPTIMISTIC", "NOT BEATEN")  # what makes a line yellow on a terminal


class Bold(str):
    """A line that a terminal shows in bold."""


class TableRow(str):
    """A line of a table, in which a terminal colours what is a gain, a loss or noise."""


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Print a line at once.  stream: None = stdout.  Exits with 141 if nobody reads it any more.

    On a terminal it is broken between words; elsewhere it stays one line, so that a program can read it.
    The signal itself stays ignored, as Python starts: it would also end a process whose network connection breaks.
    """
    target = stream or sys.stdout
    text = printable(as_called(line), keep="\n\t")
    if target.isatty():
        width, indent = shutil.get_terminal_size().columns, "    "
        wrapper = textwrap.TextWrapper(width, "", indent, break_long_words=False, break_on_hyphens=False)
        lines = SHORT_COMMAND.sub(lambda match: match[0].replace(" ", KEPT_SPACE), text).split("\n")
        text = "\n".join(map(wrapper.fill, lines)).replace(KEPT_SPACE, " ")
        if not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":  # https://no-color.org
            style = BOLD if isinstance(line, Bold) else ""
            style += YELLOW if any(word in line for word in WARNINGS) else ""
            if isinstance(line, TableRow):
                text = VERDICT.sub(lambda match: f"{VERDICT_COLOURS[match[0]]}{match[0]}{PLAIN}{style}", text)
            text = f"{style}{text}{PLAIN}" if style else text
    try:
        print(f"{text}\n", end="", file=target, flush=True)  # in one piece: workers of a study share the stream
    except BrokenPipeError:
        # stdout and stderr lead to the null device, so that nothing that is still in their buffers becomes an error.
        null = os.open(os.devnull, os.O_WRONLY)
        for closed in (sys.stdout, sys.stderr):
            os.dup2(null, closed.fileno())
        sys.exit(CLOSED_PIPE_EXIT)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """The lines of a table with aligned columns; on a terminal the header is bold and underlined.

    Cells are plain text (rich markup such as "[bold]" is shown as it is). On a terminal that is too narrow they are broken
    between words, but not within "0.91 ± 0.02"; if the words alone are wider, the rows are.
    """
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 10_000
    header = box.SIMPLE_HEAD if is_terminal else None  # it adds one to the gap between columns
    padding = (0, COLUMN_GAP - 1 if header else COLUMN_GAP, 0, 0)
    table = Table(box=header, padding=padding, pad_edge=False, show_edge=False)
    cells = [[cell.replace(" ± ", f"{KEPT_SPACE}±{KEPT_SPACE}") for cell in row] for row in (columns, *rows)]
    # The longest word of each column.
    least = [max(map(len, " ".join(column).split()), default=0) for column in zip(*cells, strict=True)]
    if indent + sum(least) + COLUMN_GAP * len(least) > width:
        width = 10_000
    for name, min_width in zip(cells[0], least, strict=True):
        table.add_column(Text(name), min_width=min_width)
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
    lines = [line.replace(KEPT_SPACE, " ").rstrip() for line in capture.get().splitlines()]
    head = next((n for n, line in enumerate(lines) if "─" in line), 1)
    return [*map(Bold, lines[:head]), *map(TableRow, lines[head:])]


def with_params(line: str, params: str, sets: str = "") -> str:
    """The line whose commands name this parameter file and SET: `make train` is `make train PARAMS=photos.yaml SET="train.epochs=3"`.

    A line that names a parameter file or SET keeps it. params.yaml is the default.  sets: "" = none; "..." stands for a long one
    and for one with a secret. The file of a budget needs none, because it states all values of SET but secrets.
    """
    words = "" if params == "params.yaml" or "PARAMS=" in line else f" PARAMS={shlex.quote(params)}"
    sets = sets.strip()
    is_public = public_sets(sets) == sets
    if sets and "SET=" not in line and not (is_public and OF_BUDGET.search(line + words)):
        quoted = shlex.quote(sets) if set(sets) & set('"$`\\!') else f'"{sets}"'
        words += f" SET={quoted}" if is_public and len(sets) <= LONGEST_SET else ' SET="..."'
    return MAKE_CALL.sub(lambda match: match[0] + words, line)


def as_called(line: str) -> str:
    """The line with commands in the words of the caller: `make train FOLD=2` is `goldfold train --fold 2` without make."""
    if GOALS in os.environ:
        return line
    names = {make_name(name): name for name in FIELDS}

    def flag(match: re.Match[str]) -> str:
        if match[1] not in names:
            return match[0]
        name = names[match[1]]
        return flag_of(name) if isinstance(FIELDS[name].default, bool) else f"{flag_of(name)} {match[2]}"

    line = MAKE_CALL.sub(lambda match: f"goldfold {match[1].replace(' ', ' + ')}", line)
    return VARIABLE.sub(flag, line)
