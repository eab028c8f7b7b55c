"""What the adapter `folder` detects in a source, by its tables or by its class folders."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pandas as pd

from competition.prepare.adapter_types import Competition


@dataclass(frozen=True)
class Layout:
    """The detected content of a folder, in the order of its tables."""

    competition: Competition
    ids: list[str]  # of the labelled rows, with validation rows
    labels: list[int]  # of the labelled rows
    groups: list[str]  # of the labelled rows; "" = no group
    test_ids: list[str]
    path_of: Mapping[str, str]  # id of each row -> its image file, relative to the folder
    validation: Collection[str]  # ids of the labelled rows in a folder named val
    # Id and the columns, as text, that the tables of both labelled and test rows have besides; None = there are none.
    columns: pd.DataFrame | None = None
