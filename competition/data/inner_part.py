"""The inner validation part: training rows of one fold model that are set aside to choose when its training stops."""

import numpy as np

from competition.config.errors import UserError


def inner_validation(
    labels: np.ndarray, groups: np.ndarray, share: float, seed: int, fold: int, classes: int
) -> np.ndarray:
    """(n,) bool: which of a fold model's training rows are set aside, about `share` of every class.

    labels, groups: (n,) int of the rows; a group (duplicates of one photo) is never split.
    The choice depends on (seed, fold) and these rows alone, so that a single fold can be trained again. Every class keeps
    at least one group to learn from; what rounding leaves over is carried to the next class, because a tenth of five
    rows is none.
    """
    rng = np.random.default_rng([seed, fold])
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    sizes, group_class = np.bincount(group), labels[first]
    aside = np.zeros(len(sizes), bool)
    due = 0.0
    for number in rng.permutation(classes):
        own = rng.permutation(np.flatnonzero(group_class == number))
        due += share * sizes[own].sum()
        for one in own[:-1]:
            if sizes[one] < due + 0.5:
                aside[one] = True
                due -= sizes[one]
    if not aside.any():
        raise UserError(
            f"train.patience: of {len(labels)} training rows none could be set aside to choose the epoch (a class keeps at "
            "least one photo to learn from); raise train.patience_share, or set train.patience to 0"
        )
    return aside[group]
