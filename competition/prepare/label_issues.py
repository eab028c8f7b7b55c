"""Search for wrong labels: by the names of classes, and by out-of-fold probabilities (confident learning, Northcutt et al., 2021)."""

from collections.abc import Mapping
from difflib import get_close_matches

import numpy as np
import pandas as pd

from competition.config.errors import needed_for

FEW, MANY = 2, 10  # rows of a class that may be a misspelling, and times as many of the class that it resembles


def misspelt_classes(rows: Mapping[str, int]) -> dict[str, str]:
    """Rare class -> the class with many more rows whose name it resembles: dasiy -> daisy. Numbered names resemble each other.

    rows: of each class.
    """
    plain = {name: " ".join(name.casefold().split()) for name in rows}  # capitals and blanks make no other name
    similar: dict[str, str] = {}
    for name, count in rows.items():
        if 0 < count <= FEW and not any(map(str.isdigit, name)):
            others = {plain[other]: other for other in rows if rows[other] >= MANY * count}
            if matches := get_close_matches(plain[name], others, 1, 0.8):
                similar[name] = others[matches[0]]
    return similar


def find_label_issues(ids: np.ndarray, labels: np.ndarray, probs: np.ndarray) -> pd.DataFrame:
    """Return id, label, suggested, label_probability and suggested_probability of suspicious rows, the worst first.

    ids: (N,) str.  labels: (N,) int.  probs: (N, C) out-of-fold, because a model confirms wrong labels that it was trained on.
    How many rows go from each label to each other class is estimated by the confident joint: a row counts for a class
    when its probability there is at least the average of that class's rows. That many, with the largest margin, are
    listed, ordered by the probability of their own label.
    """
    with needed_for("the search for wrong labels", "labels"):
        from cleanlab.filter import find_label_issues

    exact = probs.astype(np.float64)
    exact /= exact.sum(1, keepdims=True)
    worst = find_label_issues(labels, exact, return_indices_ranked_by="self_confidence", n_jobs=1)
    suggested = exact[worst].argmax(1)
    return pd.DataFrame(
        {
            "id": ids[worst],
            "label": labels[worst],
            "suggested": suggested,
            "label_probability": exact[worst, labels[worst]],
            "suggested_probability": exact[worst, suggested],
        }
    )
