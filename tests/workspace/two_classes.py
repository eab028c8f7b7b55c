"""Prepared data of two classes and three folds, without images."""

from pathlib import Path

import numpy as np
import pandas as pd
from builders import competition

from competition.prepare.prepared import Prepared

FOLDS, ROWS = 3, 12
INDEX = pd.DataFrame(
    {
        "id": [f"i{n:02}" for n in range(ROWS)] + ["t0"],
        "part": ["train"] * ROWS + ["test"],
        "label": [*(np.arange(ROWS) % 2), -1],
        "fold": [*(np.arange(ROWS) % FOLDS), -1],
        "problem": "",
    }
)
TWO = competition(metric="macro_f1")
PREPARED = Prepared(Path("data"), TWO, INDEX, "d" * 64)
