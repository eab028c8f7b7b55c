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
# Spaces at which no line is broken: within "0.91 ± 0.02", "p = 0.03", "p < 0.001", "shift_up 0.30", "trial 2", "0.81 to 0.93",
# "2 of 5", "12 s", "450 test rows" and "a gain".
WITHIN_VALUE = re.compile(
    r"(?<=±) | (?=±)|(?<= [=<]) | (?=[=<] )|(?:(?<=[^\W\d])|(?<=[^\W\d]\d)) (?=[+-]?\d)"
    r"|(?<=\d) (?=(?:to|of) \d)|(?<=\d of) (?=\d)|(?<=\d) (?=%|(?:s|min|h|[kMG]B|rows?|(?:test|training) rows?)\b)"
    r"|(?:(?<=\d test)|(?<=\d training)) (?=rows?\b)|(?<=\ba) (?=(?:gain|loss)\b)"
)
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
        width = shutil.get_terminal_size().columns
        text = "\n".join(part for one in text.split("\n") for part in wrapped(one, width))
        if not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":  # https://no-color.org
            style = BOLD if isinstance(line, Bold) else ""
            style += YELLOW if any(word in line for word in WARNINGS) else ""
            if isinstance(line, TableRow):
                text = VERDICT.sub(lambda match: f"{VERDICT_COLOURS[match[0]]}{match[0]}{PLAIN}{style}", text)
            text = f"{style}{text}{PLAIN}" if style else text
    try:
        print(text, file=target, flush=True)
    except BrokenPipeError:
        # stdout and stderr lead to the null device, so that nothing that is still in their buffers becomes an error.
        null = os.open(os.devnull, os.O_WRONLY)
        for closed in (sys.stdout, sys.stderr):
            os.dup2(null, closed.fileno())
        sys.exit(CLOSED_PIPE_EXIT)


def wrapped(line: str, width: int) -> list[str]:
    """The line in parts of at most `width` characters, broken between words, all but the first indented by two more.

    A value stays with its name, error and unit, and a short command in one line.
    """
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    text = SHORT_COMMAND.sub(lambda match: match[0].replace(" ", KEPT_SPACE), WITHIN_VALUE.sub(KEPT_SPACE, line))
    parts = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [part.replace(KEPT_SPACE, " ") for part in parts]


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """The lines of a table with aligned columns; on a terminal the header is bold and underlined.

    Cells are plain text (rich markup such as "[bold]" is shown as it is). On a terminal that is too narrow they are broken
    between words, but not within "0.91 ± 0.02"; if the words alone are wider, each row becomes a sentence, without the cells
    that hold nothing.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    console_width = shutil.get_terminal_size().columns if is_terminal else 10_000
    room = console_width - indent - COLUMN_GAP * (len(columns) - 1)
    contents = [[WITHIN_VALUE.sub(KEPT_SPACE, cell) for cell in cells] for cells in zip(columns, *rows, strict=True)]
    if sum(max(cell_len(word) for cell in cells for word in cell.split(" ")) for cells in contents) > room:
        named = (
            [f"{name} {cell}" for name, cell in zip(columns[1:], row[1:], strict=True) if cell not in ("", "-")]
            for row in rows
        )
        return [" " * indent + f"{row[0]}: {'; '.join(cells)}" for row, cells in zip(rows, named, strict=True)]
    header = box.SIMPLE_HEAD if is_terminal else None  # it adds one to the gap between columns
    padding = (0, COLUMN_GAP - 1 if header else COLUMN_GAP, 0, 0)
    table = Table(box=header, padding=padding, pad_edge=False, show_edge=False)
    for cells, width in zip(contents, column_widths(contents, room), strict=True):
        table.add_column(Text(cells[0]), width=width)
    for row in zip(*(cells[1:] for cells in contents), strict=True):
        table.add_row(*map(Text, row))
    console = Console(width=console_width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
    lines = [line.replace(KEPT_SPACE, " ").rstrip() for line in capture.get().splitlines()]
    head = next((n for n, line in enumerate(lines) if "─" in line), 1)
    return [*map(Bold, lines[:head]), *map(TableRow, lines[head:])]


def column_widths(contents: Sequence[Sequence[str]], room: int) -> list[int]:
    """The width of each column, at most `room` together.  contents: the cells of each column, whose words fit into the room."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    full = [max(map(cell_len, cells)) for cells in contents]
    least = [max(cell_len(word) for cell in cells for word in cell.split(" ")) for cells in contents]
    widths = list(full)
    while sum(widths) > room:  # the widest of those that can still be broken gives way
        widths[max(range(len(widths)), key=lambda n: (widths[n] > least[n], widths[n]))] -= 1
    # Broken cells seldom fill their column: the column with the most lines gets what they leave.
    console = Console(width=room)
    parts = [[Text(cell).wrap(console, width) for cell in cells] for cells, width in zip(contents, widths, strict=True)]
    widths = [max(part.cell_len for cell in cells for part in cell) for cells in parts]
    longest = max(range(len(widths)), key=lambda n: sum(map(len, parts[n])))
    widths[longest] = min(full[longest], widths[longest] + room - sum(widths))
    return widths


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
