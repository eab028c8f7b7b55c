"""Small simulated competitions for benchmarks.simulation: one setting each, drawn from a seed.

Members share the evidence of an image and add their own noise, so the best blend is close to equal weights unless a
setting says otherwise. Fresh rows come from the same distribution as the out-of-fold rows.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Setting:
    """One kind of simulated competition."""

    members: int
    classes: int
    rows: int  # out-of-fold rows
    noise: tuple[float, float] = (0.9, 1.2)  # lowest and highest standard deviation of a member's own noise
    dominating: float = 0.0  # noise of the first member, 0 = like the others
    sharpness: tuple[float, float] = (1.0, 1.0)  # smallest and largest factor on a member's logits: calibration
    wrong_labels: float = 0.0  # share of rows, out-of-fold and fresh ones
    imbalance: float = 0.0  # standard deviation of the logarithm of class sizes
    class_rows: tuple[int, int] = (0, 0)  # smallest and largest class, of the out-of-fold rows; (0, 0) = by imbalance
    signal: float = 6.5  # mean evidence of the label


SETTINGS: dict[str, Setting] = {
    "many members": Setting(members=16, classes=20, rows=1500, imbalance=0.8),
    "two members": Setting(members=2, classes=20, rows=1500, noise=(0.8, 1.6), imbalance=0.8),
    "one dominating member": Setting(members=5, classes=20, rows=1500, noise=(2.0, 3.5), dominating=0.4, imbalance=0.8),
    "unequal calibration": Setting(members=5, classes=20, rows=1500, sharpness=(0.3, 4.0), imbalance=0.8),
    "5 % wrong labels": Setting(members=5, classes=20, rows=1500, wrong_labels=0.05, imbalance=0.8),
    "10 classes of 100 rows": Setting(members=5, classes=10, rows=1000, class_rows=(100, 100), signal=4.5),
    "classes with 1 to 5 rows": Setting(members=5, classes=60, rows=180, class_rows=(1, 5), signal=6.0),
}


def draw(setting: Setting, seed: int, fresh: int) -> tuple[np.ndarray, np.ndarray, int]:
    """labels (rows + fresh,) int, probs (members, rows + fresh, classes) float32, and the number of out-of-fold rows."""
    rng = np.random.default_rng(seed)
    low, high = setting.class_rows
    sizes = np.exp(setting.imbalance * rng.normal(size=setting.classes))
    if high:
        sizes = np.linspace(low, high, setting.classes).round()
    labels = np.repeat(np.arange(setting.classes), sizes.astype(int)) if high else _drawn(rng, sizes, setting.rows)
    rows = len(labels)
    labels = np.concatenate([labels, _drawn(rng, sizes, fresh)])
    probs = _members(rng, setting, labels, sizes / sizes.sum())
    flipped = rng.random(len(labels)) < setting.wrong_labels
    labels = np.where(flipped, rng.integers(0, setting.classes, len(labels)), labels)
    return labels, probs, rows


def _drawn(rng: np.random.Generator, sizes: np.ndarray, rows: int) -> np.ndarray:
    return np.asarray(rng.choice(len(sizes), rows, p=sizes / sizes.sum()))


def _members(rng: np.random.Generator, setting: Setting, labels: np.ndarray, share: np.ndarray) -> np.ndarray:
    shape = (len(labels), setting.classes)
    evidence = rng.normal(size=shape).astype(np.float32)
    positions = np.arange(len(labels))
    # Some images are hard for every member; every class is confused with one other class.
    evidence[positions, labels] += (setting.signal * rng.gamma(4.0, 0.25, len(labels))).astype(np.float32)
    evidence[positions, (labels + 1) % setting.classes] += rng.normal(1.0, 1.0, len(labels)).astype(np.float32)
    bias = 0.5 * np.log(share / share.mean()).astype(np.float32)  # networks favour common classes
    noise = rng.uniform(*setting.noise, setting.members)
    if setting.dominating:
        noise[0] = setting.dominating
    sharpness = np.exp(rng.uniform(*np.log(setting.sharpness), setting.members))
    probs = np.empty((setting.members, *shape), np.float32)
    for m in range(setting.members):
        own = rng.normal(size=shape).astype(np.float32) * np.float32(noise[m])
        # Calibrated, up to `sharpness`: evidence of variance 1 + noise^2 and mean `signal` asks for this scale.
        scale = sharpness[m] * setting.signal / (1 + noise[m] ** 2) * 0.5
        logits = np.float32(scale) * (evidence + own + bias)
        probs[m] = np.exp(logits - logits.max(1, keepdims=True))
        probs[m] /= probs[m].sum(1, keepdims=True)
    return probs
