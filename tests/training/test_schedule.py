"""The learning rate rises linearly, falls as half a cosine, and is never 0."""

import numpy as np
import pytest

from competition.training.schedule import warmup_cosine


def test_the_rate_rises_linearly_to_the_peak_and_falls_as_half_a_cosine() -> None:
    rates = warmup_cosine(1.0, steps=100, warmup=0.1)
    assert rates.dtype == np.float32
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10, rtol=1e-6)
    falling = rates[9:]
    np.testing.assert_allclose(falling, 0.5 * (1 + np.cos(np.pi * np.arange(91) / 91)), atol=1e-6)
    assert rates.argmax() == 9


@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100])
def test_there_is_one_rate_per_step_and_none_is_0_or_above_the_peak(steps: int, warmup: float) -> None:
    rates = warmup_cosine(0.5, steps, warmup)
    assert rates.shape == (steps,)
    assert (rates > 0).all() and (rates <= 0.5).all()


def test_without_warmup_the_rate_only_falls() -> None:
    assert (np.diff(warmup_cosine(1.0, 50, 0.0)) < 0).all()


def test_with_warmup_only_the_rate_only_rises() -> None:
    rates = warmup_cosine(1.0, 50, 1.0)
    assert (np.diff(rates) > 0).all() and rates[-1] == 1
