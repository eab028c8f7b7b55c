"""t-SNE (van der Maaten and Hinton 2008) of a few hundred rows, for the report's map.

scikit-learn's is as fast, but importing it takes a second, half of what a light command may take. Up to about a thousand rows all
pairs are computed; the Barnes-Hut approximation pays for more.
"""

import numpy as np
from threadpoolctl import threadpool_limits

COMPONENTS, PERPLEXITY = 50, 20.0
EARLY_STEPS, STEPS = 100, 250  # with exaggerated attraction; all
EXAGGERATION = 12.0
DOUBLINGS = 30  # of the interval in which the width of a row's kernel is searched


def map_places(vectors: np.ndarray) -> np.ndarray | None:
    """(N, 2) float32 places in which near vectors are near, by PCA and t-SNE; None if the vectors differ in fewer than two dimensions.

    vectors: (N, F) float32, N >= 3. The start is fixed and there is one thread: equal vectors have equal places.
    """
    vectors, count = np.nan_to_num(vectors, posinf=0.0, neginf=0.0).astype(np.float64), len(vectors)
    vectors -= vectors.mean(0)
    with threadpool_limits(limits=1):
        variances, axes = np.linalg.eigh(vectors @ vectors.T)  # of the rows: there are fewer of them than features
        kept = min(COMPONENTS, *vectors.shape)
        spread = np.sqrt(np.maximum(variances[: -kept - 1 : -1], 0.0))
        if kept < 2 or spread[1] <= 1e-4 * spread[0]:  # a line, such as the probabilities of two classes
            return None
        components = axes[:, : -kept - 1 : -1] * spread  # the first two are the start
        affinities = joint_probabilities(components, min(PERPLEXITY, (count - 1) / 3))
        places = (components[:, :2] / components[:, 0].std() * 1e-4).astype(np.float32)
        velocity, gains, rate = np.zeros_like(places), np.ones_like(places), max(count / EXAGGERATION / 4, 50.0)
        ones = np.ones((count, 1), np.float32)
        for step in range(STEPS):
            is_early = step < EARLY_STEPS
            squares = (places**2).sum(1, keepdims=True)
            # 1 + squared distance
            kernel = np.hstack([-2 * places, squares + 1, ones]) @ np.hstack([places, ones, squares]).T
            np.reciprocal(kernel, out=kernel)
            np.fill_diagonal(kernel, 0)
            forces = kernel * (-1 / kernel.sum())
            forces += affinities * np.float32(EXAGGERATION) if is_early else affinities
            forces *= kernel
            gradient = 4 * (forces.sum(1, keepdims=True) * places - forces @ places)
            gains = np.maximum(np.where(gradient * velocity < 0, gains + 0.2, gains * 0.8), 0.01)
            velocity = (0.5 if is_early else 0.8) * velocity - rate * gains * gradient
            places += velocity
    return places


def joint_probabilities(vectors: np.ndarray, perplexity: float) -> np.ndarray:
    """(N, N) float32, sum 1: how near the rows are to each other.  vectors: (N, F) float64.

    The Gaussian kernel of each row is as wide as the perplexity asks for, which is found by bisection.
    """
    squares = (vectors**2).sum(1)
    distances = np.maximum(squares[:, None] + squares - 2 * vectors @ vectors.T, 0.0)
    np.fill_diagonal(distances, np.inf)
    distances -= distances.min(1, keepdims=True)
    np.fill_diagonal(distances, 0)
    distances = (distances / max(float(distances.mean()), 1e-300)).astype(np.float32)
    others = ~np.eye(len(vectors), dtype=bool)
    low, high = np.full(len(vectors), -20.0, np.float32), np.full(len(vectors), 20.0, np.float32)
    for _ in range(DOUBLINGS):
        exponents = (low + high) / 2
        scaled = distances * np.exp2(exponents)[:, None]
        weights = np.exp(-scaled) * others
        totals = weights.sum(1)
        is_wide = np.log(totals) + (weights * scaled).sum(1) / totals > np.log(perplexity)
        low, high = np.where(is_wide, exponents, low), np.where(is_wide, high, exponents)
    weights /= totals[:, None]
    symmetric: np.ndarray = (weights + weights.T) / (2 * len(vectors))
    return symmetric
