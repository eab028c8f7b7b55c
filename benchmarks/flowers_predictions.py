"""Simulated predictions for testing choices: class sizes as unequal as in the flowers data, members with correlated errors.

No network is trained: a member's logits are the image's evidence, shared by all members, plus its own noise and a bias
towards common classes, scaled to the confidence of a network. The members score about as high as the published
networks (0.95 macro-F1). Fresh rows come from the same distribution.
"""

import numpy as np

CLASSES, TRAIN, SMALLEST, MEDIAN, LARGEST = 104, 12_753, 18, 88, 782


def class_counts() -> np.ndarray:
    """(104,) int, descending. Matches the published statistics of the training set: sum 12,753, smallest 18, median 88,
    largest 782, 24 classes below 30. The counts in between are interpolated, smooth on a logarithmic scale.
    """
    rank = np.linspace(0, 1, CLASSES)

    def curve(bend: float) -> np.ndarray:
        upper = np.clip((rank - 0.5) / 0.5, 0, 1) ** bend
        lower = np.interp(rank, [0, 23 / 103, 0.5], np.log([SMALLEST, 29.4, MEDIAN + 1]))
        return np.round(
            np.exp(np.where(rank > 0.5, np.log(MEDIAN + 1) + upper * np.log(LARGEST / (MEDIAN + 1)), lower))
        ).astype(int)

    low, high = 0.2, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle).sum() > TRAIN else (low, middle)
    counts = curve(high)
    counts[75] += TRAIN - counts.sum()  # the rounding error
    return counts[::-1]


def draw_predictions(
    seed: int, rows: int, members: int, spread: float, clones: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """labels (rows,) int and probs (members, rows, 104) float32; the last `clones` members nearly repeat the first.

    Members differ in which rows they classify wrongly and, by `spread`, in strength (0 = equal). Labels by class share.
    """
    rng = np.random.default_rng(seed)
    share = class_counts() / TRAIN
    labels = rng.choice(CLASSES, rows, p=share)
    positions = np.arange(rows)
    strength = 0.95 * np.exp(spread * rng.uniform(-1, 1, members))
    # Some images are hard for every member; every class is confused with one other class.
    evidence = rng.normal(size=(rows, CLASSES)).astype(np.float32)
    evidence[positions, labels] += rng.gamma(4.0, 2.4, rows).astype(np.float32)
    evidence[positions, (labels * 7 + 3) % CLASSES] += rng.normal(1.0, 1.0, rows).astype(np.float32)
    bias = 0.75 * np.log(share / share.mean()).astype(np.float32)
    probs = np.empty((members, rows, CLASSES), np.float32)
    first_noise = np.zeros(0, np.float32)
    for m in range(members):
        # Heavy tails (Student's t, 4 degrees of freedom): sometimes a single network is confident and wrong.
        scale = np.sqrt(4 / rng.chisquare(4, (rows, 1))).astype(np.float32)
        own_noise = scale * rng.normal(size=(rows, CLASSES)).astype(np.float32)
        if m >= members - clones:
            own_noise = first_noise + np.float32(0.2) * own_noise
        first_noise = first_noise if m else own_noise
        logits = 1.8 * (evidence + own_noise * np.float32(0.5 / strength[m]) + bias)
        probs[m] = np.exp(logits - logits.max(1, keepdims=True))
        probs[m] /= probs[m].sum(1, keepdims=True)
    return labels, probs
