"""Bagged greedy selection: 40 members x 16,465 rows x 104 classes, 50 rounds x 8 bags. python -m benchmarks.blend

Compared with the same search on scikit-learn's f1_score (one bag, compared pick by pick), and with the loop of AutoGluon's
EnsembleSelection (a few rounds, scaled to all). Takes about half a minute.
"""

import resource
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

import numpy as np
from sklearn.metrics import f1_score

from benchmarks.flowers_predictions import CLASSES, draw_predictions
from competition.ensemble.blend import BlendSettings, fit_blend, half_samples
from competition.ensemble.greedy import greedy_picks
from competition.ensemble.metrics import METRICS

MEMBERS, ROWS, ROUNDS, BAGS, AUTOGLUON_ROUNDS = 40, 16_465, 50, 8, 3
T = TypeVar("T")
SETTINGS = BlendSettings(("none",), ("bagged",), "mean", ROUNDS, BAGS, 0, 0.0, 0)


def f1(labels: np.ndarray, probs: np.ndarray) -> float:
    return float(f1_score(labels, probs.argmax(1), labels=range(CLASSES), average="macro", zero_division=0))


def reference_picks(parts: np.ndarray, labels: np.ndarray, rounds: int) -> list[int]:
    """Greedy selection that scores every candidate sum from its rows. Ties: highest likelihood of the labels, then the first."""
    total, picks = np.zeros_like(parts[0]), []
    label_probs = parts[:, np.arange(len(labels)), labels]
    best, length = -np.inf, 0
    for _ in range(rounds):
        scores = np.array([f1(labels, total + part) for part in parts])
        tied = np.flatnonzero(scores == scores.max())
        current = label_probs[picks].sum(0) if picks else 0.0
        picks.append(int(tied[np.argmax([np.log(np.maximum(current + label_probs[m], 1e-7)).mean() for m in tied])]))
        total += parts[picks[-1]]
        if scores[picks[-1]] > best:
            best, length = scores[picks[-1]], len(picks)
    return picks[:length]


def autogluon_rounds(parts: np.ndarray, labels: np.ndarray, rounds: int) -> None:
    """The inner loop of AutoGluon's EnsembleSelection._fit: a running mean, recomputed for every candidate."""
    mean = np.zeros_like(parts[0])
    for s in range(rounds):
        scores = [1 - f1(labels, (s / (s + 1)) * mean + part / (s + 1)) for part in parts]
        mean = (s * mean + parts[int(np.argmin(scores))]) / (s + 1)


def seconds(function: Callable[..., T], *arguments: object) -> tuple[float, T]:
    """Seconds of one call, and its result."""
    start = perf_counter()
    result = function(*arguments)
    return perf_counter() - start, result


def main() -> None:
    labels, probs = draw_predictions(0, ROWS, MEMBERS, spread=0.35)
    metric, members = METRICS["macro_f1"], {f"m{m:02}": p for m, p in enumerate(probs)}
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fit_seconds, blend = seconds(fit_blend, "bagged", members, labels, metric, SETTINGS)
    peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gain = metric.evaluate(labels, blend.mix(members)) - metric.evaluate(labels, probs.mean(0))
    print(f"bagged greedy, {BAGS} bags x {ROUNDS} rounds: {fit_seconds:.1f} s,", end=" ")
    added_memory = (peak_memory - memory_before) / 2**20
    print(f"{peak_memory / 2**20:.1f} GiB at the peak ({added_memory:.1f} of it added),", end=" ")
    print(f"{gain:+.4f} over equal weights on the rows it was chosen on")

    rows = half_samples(labels, BAGS, 0)[0]
    bag_probs, bag_labels = np.ascontiguousarray(probs[:, rows]), labels[rows]
    greedy_seconds, picks = seconds(greedy_picks, probs, labels, metric, ROUNDS, rows)
    reference_seconds, reference = seconds(reference_picks, bag_probs, bag_labels, ROUNDS)
    print(f"one bag: {greedy_seconds:.2f} s, the same search on f1_score {reference_seconds:.0f} s:", end=" ")
    print(f"{reference_seconds / greedy_seconds:.0f} times as fast,", end=" ")
    print(f"picks {'equal' if picks == reference else 'DIFFERENT'} ({len(picks)})")
    autogluon_seconds, _ = seconds(autogluon_rounds, bag_probs, bag_labels, AUTOGLUON_ROUNDS)
    autogluon_round, greedy_round = autogluon_seconds / AUTOGLUON_ROUNDS, greedy_seconds / ROUNDS
    print(f"AutoGluon's loop: {autogluon_round:.2f} s a round, ours {greedy_round:.3f}:", end=" ")
    print(f"{autogluon_round / greedy_round:.0f} times as fast")


if __name__ == "__main__":
    main()
