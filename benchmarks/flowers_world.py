"""A world to test choices in: 104 classes as unequal as the flowers', members that share what is hard about an image.

No network is trained: a member's logits are the image's evidence, shared by all members, plus its own noise and a pull
towards common classes, sharpened to the sureness of a network. The level of the members is about that of the
published networks (0.95 macro-F1). Fresh rows come from the same law.
"""

import numpy as np

CLASSES, TRAIN, SMALLEST, MEDIAN, LARGEST = 104, 12_753, 18, 88, 782


def class_counts() -> np.ndarray:
    """(104,) int, falling. Made to have the published facts of the training set: sum 12,753, smallest 18, median 88,
    largest 782, 24 classes below 30. The single counts in between are ours, smooth on a logarithmic scale.
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
    counts[75] += TRAIN - counts.sum()  # what rounding left over
    return counts[::-1]


def world(seed: int, rows: int, members: int, spread: float, clones: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """labels (rows,) int and probs (members, rows, 104) float32; the last `clones` members nearly repeat the first.

    Members differ in what they find hard and, by `spread`, in strength (0 = all alike). Labels by class share.
    """
    rng = np.random.default_rng(seed)
    share = class_counts() / TRAIN
    labels = rng.choice(CLASSES, rows, p=share)
    at = np.arange(rows)
    strength = 0.95 * np.exp(spread * rng.uniform(-1, 1, members))
    # Some images are hard for everyone; every class has a neighbour it is taken for.
    evidence = rng.normal(size=(rows, CLASSES)).astype(np.float32)
    evidence[at, labels] += rng.gamma(4.0, 2.4, rows).astype(np.float32)
    evidence[at, (labels * 7 + 3) % CLASSES] += rng.normal(1.0, 1.0, rows).astype(np.float32)
    pull = 0.75 * np.log(share / share.mean()).astype(np.float32)
    probs = np.empty((members, rows, CLASSES), np.float32)
    first = np.zeros(0)
    for m in range(members):
        # Heavy tails: now and then a network is sure and wrong where the others are not (Student's t, 4 degrees).
        unsure = np.sqrt(4 / rng.chisquare(4, (rows, 1))).astype(np.float32)
        own = unsure * rng.normal(size=(rows, CLASSES)).astype(np.float32)
        if m >= members - clones:
            own = first + 0.2 * own
        first = first if m else own
        logits = 1.8 * (evidence + own * np.float32(0.5 / strength[m]) + pull)
        probs[m] = np.exp(logits - logits.max(1, keepdims=True))
        probs[m] /= probs[m].sum(1, keepdims=True)
    return labels, probs
