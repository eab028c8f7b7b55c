"""Small simulated predictions: members share the evidence of each row and add their own noise."""

import numpy as np

from competition.config.params import Blend, Decision, Honest, Policy
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested_cross_fit import OofRows
from competition.ensemble.settings import ChainSettings
from competition.ensemble.stored_predictions import ViewPredictions

SINGLE_LABEL = [name for name, metric in METRICS.items() if metric.target == "single"]


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return (exponentials / exponentials.sum(-1, keepdims=True)).astype(np.float32)


def draw(noise, rows=400, classes=5, seed=0, signal=3.0) -> tuple[np.ndarray, np.ndarray]:
    """labels (N,) and probs (M, N, C); `noise`: one standard deviation per member. Later classes are more common."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, classes + 1)
    labels = rng.choice(classes, rows, p=share / share.sum())
    evidence = rng.normal(size=(rows, classes))
    evidence[np.arange(rows), labels] += signal
    return labels, np.stack([softmax(evidence + s * rng.normal(size=(rows, classes))) for s in noise])


def as_members(probs: np.ndarray) -> dict[str, ViewPredictions]:
    """(M, N, C) -> m0, m1, ... with the one view `identity`."""
    ids = np.array([f"i{n:05}" for n in range(probs.shape[1])])
    return {f"m{m}": ViewPredictions(ids, ("identity",), p[:, None].astype(np.float16)) for m, p in enumerate(probs)}


METHODS = ("equal", "bagged")
BLEND = Blend(name="", members=(), methods=METHODS, rounds=15, bags=4, ridge=1.0, seed=0, class_shares="training")
DECISION = Decision(rules=("argmax", "prior"), passes=1, shrink_rows=20)
POLICY = Policy(method="greedy", objective="log_likelihood", rounds=10)
SETTINGS = ChainSettings(METRICS["macro_f1"], POLICY, BLEND, DECISION)
HONEST = Honest(resamples=300, seed=0, blocks=10)


def rows_of(labels: np.ndarray, probs: np.ndarray, folds: int = 5) -> OofRows:
    """Members m0, m1, ...; row n is in fold n % folds.  probs: (M, N, C)."""
    return OofRows(as_members(probs), labels, np.arange(len(labels)) % folds)


def oof_rows(noise: list[float], rows: int = 400, folds: int = 5, **options: float) -> OofRows:
    """Members with these standard deviations of noise, as `draw` makes them."""
    return rows_of(*draw(noise, rows, **options), folds)
