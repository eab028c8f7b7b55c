"""The inner validation part: a share of every class, complete groups, the same for the same seed and fold."""

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.training.fold_rows import inner_part


def test_a_group_of_duplicates_is_never_split() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 60, 200)
    labels = groups % 4
    chosen_rows = inner_part(labels, groups, share=0.2, seed=7, fold=1, classes=4)
    assert not set(groups[chosen_rows]) & set(groups[~chosen_rows])
    assert 0.15 < chosen_rows.mean() < 0.25


def test_the_choice_depends_on_seed_and_fold() -> None:
    labels, groups = np.arange(90) % 3, np.arange(90)
    chosen = {
        (seed, fold): inner_part(labels, groups, 0.2, seed, fold, 3).tobytes() for seed in (1, 2) for fold in (0, 1)
    }
    assert len(set(chosen.values())) == 4
    assert inner_part(labels, groups, 0.2, 2, 1, 3).tobytes() == chosen[2, 1]


def test_rare_classes_contribute_in_turn_and_keep_one_photo_for_training() -> None:
    labels = np.repeat(np.arange(40), 5)  # a tenth of five rows is none
    chosen_rows = inner_part(labels, np.arange(200), share=0.1, seed=7, fold=0, classes=40)
    assert chosen_rows.sum() == pytest.approx(20, abs=1)
    single = np.concatenate([labels, [40, 41]])  # two classes of one photo
    chosen_rows = inner_part(single, np.arange(202), share=0.5, seed=7, fold=0, classes=42)
    assert not chosen_rows[-2:].any()
    with pytest.raises(UserError, match=r"raise train\.patience_share, or set train\.patience to 0"):
        inner_part(np.arange(6), np.arange(6), share=0.1, seed=7, fold=0, classes=6)
