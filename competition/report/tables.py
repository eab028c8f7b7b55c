"""Tables in the terminal, and tables for spreadsheets, in which no cell is run as a formula."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the terminal needs no pandas
    import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of cells that a spreadsheet would run (OWASP)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """The lines of a table, columns aligned, without a frame; the header is bold on a terminal.

    Cells are plain text (rich markup such as "[bold]" is shown as it is) and are never wrapped.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(Text(column), no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=10_000, color_system="standard" if sys.stdout.isatty() else None, highlight=False)
    with console.capture() as capture:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
    return [line.rstrip() for line in capture.get().splitlines()]


def for_spreadsheet(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table with ' before every text that a spreadsheet would run. Never for a submission or a table that is joined by id."""
    return table.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell)
