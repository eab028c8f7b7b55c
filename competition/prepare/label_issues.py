"""Search for wrong labels: by out-of-fold probabilities (confident learning, Northcutt et al., 2021)."""

import numpy as np
import pandas as pd

from competition.config.errors import needed_for


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
