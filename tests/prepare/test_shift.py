import numpy as np
import pandas as pd
import pytest
from photos import digit_thumbs
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from competition.prepare import shift
from competition.prepare.series import image_descriptors


@pytest.fixture(autouse=True)
def single_threaded():
    """Use one thread: for small matrices, several threads on busy cores are slower."""
    with threadpool_limits(1):
        yield


def compare_parts(embedding, is_test, groups=None):
    rows = len(embedding)
    index = pd.DataFrame({"id": [f"i{n}" for n in range(rows)], "part": np.where(is_test, "test", "train")})
    groups = np.arange(rows) if groups is None else groups
    return shift.compare(index.assign(problem=""), embedding, groups)


@pytest.fixture(scope="module")
def digits():
    return image_descriptors(digit_thumbs()[0])


def test_random_splits_of_several_seeds_raise_no_warning(digits):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        chosen = digits[rng.choice(len(digits), 400, replace=False)]
        result, _ = compare_parts(chosen, rng.random(400) < 0.3)
        assert result is not None and not result.differs, f"seed {seed}: {result}"


@pytest.mark.parametrize(
    "change",
    [
        lambda images: images * 0.7,
        lambda images: images * np.array([1.0, 0.9, 0.75]),
    ],
    ids=["darker images", "other colours"],
)
def test_a_planted_shift_raises_the_warning(change):
    thumbs, _ = digit_thumbs()
    thumbs = thumbs[:600] * 0.8 + 30
    is_test = np.random.default_rng(0).random(600) < 0.3
    thumbs[is_test] = change(thumbs[is_test])
    result, rows = compare_parts(image_descriptors(thumbs.clip(0, 255).astype(np.uint8)), is_test)
    assert result is not None and result.differs and result.unlike > 0.5 * result.test_rows
    odds = rows.groupby("part")["odds"].median()
    assert odds["test"] > 1 > odds["train"]


def test_the_auc_agrees_with_scikit_learn_and_its_error_with_the_bootstrap():
    rng = np.random.default_rng(0)
    negative, positive = rng.normal(0, 1, 300).round(1), rng.normal(0.7, 1, 120).round(1)  # rounded: ties
    auc, error = shift.auc_with_error(negative, positive)
    truth = np.r_[np.zeros(300), np.ones(120)]
    assert auc == pytest.approx(roc_auc_score(truth, np.r_[negative, positive]))
    draws = [shift.auc_with_error(rng.choice(negative, 300), rng.choice(positive, 120))[0] for _ in range(2000)]
    assert error == pytest.approx(np.std(draws), rel=0.08)
