"""Tables in the terminal."""

import sys
from collections.abc import Sequence


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
