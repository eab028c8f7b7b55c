"""Tables for spreadsheets, in which no cell is run as a formula."""

from typing import TYPE_CHECKING

from competition.submission.format import FORMULA

if TYPE_CHECKING:  # the terminal needs no pandas
    import pandas as pd


def for_spreadsheet(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table with ' before every text that a spreadsheet would run. Never for a submission or a table that is joined by id."""
    return table.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell)
