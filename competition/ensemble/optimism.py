"""Expected optimism of the best of n scores on the same rows: selecting the maximum makes its score optimistic.

The noise of the rows is resampled around estimates of the true scores; the optimism is the mean over resamples of the
winner's score minus its true score. The observed scores are shrunk first, because their spread already contains the noise
(empirical Bayes). Equally good candidates then count as equal, and a clearly best candidate has no optimism.
"""

import numpy as np


def expected_optimism(scores: np.ndarray, resampled: np.ndarray) -> float:
    """E[score of the best of n candidates - its true score], in units of the score; 0 for one candidate.

    scores: (n,) observed on the same rows, greater is better.  resampled: (n, R) on R resamples of these rows, the same
    resamples for all candidates.
    """
    if len(scores) < 2:
        return 0.0
    noise = resampled - resampled.mean(1, keepdims=True)
    # The scores are shrunk towards their mean by the share of their variance that is noise.
    observed = float(scores.var(ddof=1))
    signal_share = max(0.0, 1.0 - noise_between(noise) ** 2 / observed) if observed > 0 else 0.0
    shrunk = scores.mean() + signal_share * (scores - scores.mean())
    winners = (shrunk[:, None] + noise).argmax(0)  # (R,)
    return max(0.0, float(noise[winners, np.arange(len(winners))].mean()))


def noise_between(noise: np.ndarray) -> float:
    """Standard deviation between candidates due to the sampling of rows; noise common to all candidates cancels.

    noise: (n, R) deviations of the resampled scores, n >= 2.
    """
    return float(np.sqrt(noise.var(0, ddof=1).mean()))


def normal_optimism(candidates: int, noise: float) -> float:
    """Expected maximum of n independent normal deviations, for candidates without stored outputs.

    noise: standard deviation of one candidate's score.
    """
    if candidates < 2:
        return 0.0
    grid = np.linspace(-8.0, 8.0, 4001)
    step = grid[1] - grid[0]
    density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    below = np.clip((np.cumsum(density) - density / 2) * step, 0.0, 1.0)
    return noise * float(np.sum(grid * candidates * density * below ** (candidates - 1)) * step)
