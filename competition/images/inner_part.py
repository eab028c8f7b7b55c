"""The inner validation part: training rows of a fold model that are held out to choose its best epoch."""

import numpy as np

from competition.config.errors import UserError


def inner_validation(
    labels: np.ndarray, groups: np.ndarray, share: float, seed: int, fold: int, classes: int
) -> np.ndarray:
    """Choose the inner validation rows of a fold model, about `share` of every class. Returns (n,) bool.

    labels, groups: (n,) int of its training rows; a group (duplicates of one photo) is never split.
    The choice depends on (seed, fold) and these rows only, so that a single fold can be trained again. At least one group
    of every class remains for training. The rounding error of a class is carried to the next one, because a tenth of five
    rows rounds to none.
    Raises UserError if no row can be chosen.
    """
    rng = np.random.default_rng([seed, fold])
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    sizes, group_class = np.bincount(group), labels[first]
    is_chosen = np.zeros(len(sizes), bool)  # per group
    due = 0.0  # rows still to be chosen
    for number in rng.permutation(classes):
        candidates = rng.permutation(np.flatnonzero(group_class == number))
        due += share * sizes[candidates].sum()
        for candidate in candidates[:-1]:
            if sizes[candidate] < due + 0.5:
                is_chosen[candidate] = True
                due -= sizes[candidate]
    if not is_chosen.any():
        raise UserError(
            f"train.patience: none of {len(labels)} training rows can be held out to choose the epoch (at least one photo of "
            "each class remains for training); raise train.patience_share, or set train.patience to 0"
        )
    return is_chosen[group]
