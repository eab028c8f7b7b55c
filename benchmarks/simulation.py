"""Is the honest gain of the default blend unbiased on fresh rows? python -m benchmarks.simulation [--seeds 24]

Simulated competitions in ten settings; members share the evidence of an image and add their own noise. In each the default
of params.yaml makes all its choices on out-of-fold rows and is scored on 10,000 fresh rows, as a gain over equal weights with a
decision rule of their own.

claimed: the honest gain, with the standard error printed beside it.  delivered: the gain on fresh rows.
over argmax: the gain over equal weights with argmax on fresh rows.  +-: standard error over the seeds.

Two verdicts for each setting, and exit code 0 only if all hold:
- It delivers what it claims: claimed - delivered is 0 within two standard errors over the seeds.
- It is not worse than equal weights with argmax: that gain is not below 0 by more than two standard errors.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from competition.config.params import Honest
from competition.config.params_file import load_params
from competition.ensemble.blend_weights import Blend
from competition.ensemble.chain import apply_chain
from competition.ensemble.decision import ARGMAX, fit_decision, rules_for
from competition.ensemble.honest_score import fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested_cross_fit import OofRows
from competition.ensemble.settings import ChainSettings, chain_settings
from competition.ensemble.stored_predictions import ViewPredictions

MACRO_F1 = METRICS["macro_f1"]
FOLDS, FRESH, RESAMPLES = 5, 10_000, 200
FIRST_SEED = 1000  # the rule of choice was picked on smaller ones


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
    favour: float = 0.5  # how strongly networks favour common classes: factor on the logarithm of a class's share


SETTINGS: dict[str, Setting] = {
    "many members": Setting(members=16, classes=20, rows=1500, imbalance=0.8),
    "two members": Setting(members=2, classes=20, rows=1500, noise=(0.8, 1.6), imbalance=0.8),
    "one dominating member": Setting(members=5, classes=20, rows=1500, noise=(2.0, 3.5), dominating=0.4, imbalance=0.8),
    "unequal calibration": Setting(members=5, classes=20, rows=1500, sharpness=(0.3, 4.0), imbalance=0.8),
    "5 % wrong labels": Setting(members=5, classes=20, rows=1500, wrong_labels=0.05, imbalance=0.8),
    "10 classes of 100 rows": Setting(members=5, classes=10, rows=1000, class_rows=(100, 100), signal=4.5),
    "classes with 1 to 5 rows": Setting(members=5, classes=60, rows=180, class_rows=(1, 5), signal=6.0),
    "common classes favoured": Setting(members=5, classes=20, rows=1500, imbalance=0.8, favour=1.0),
    "the same, 300 rows": Setting(members=5, classes=8, rows=300, imbalance=0.8, signal=5.0, favour=1.0),
    "300 rows": Setting(members=5, classes=8, rows=300, imbalance=0.8, signal=5.0),
}


def draw(setting: Setting, seed: int, fresh: int) -> tuple[np.ndarray, np.ndarray, int]:
    """labels (rows + fresh,) int, probs (members, rows + fresh, classes) float32, and the number of out-of-fold rows."""
    rng = np.random.default_rng(seed)
    low, high = setting.class_rows
    sizes = np.exp(setting.imbalance * rng.normal(size=setting.classes))
    if high:
        sizes = np.linspace(low, high, setting.classes).round()
    share = sizes / sizes.sum()
    numbers = np.arange(setting.classes)
    labels = np.repeat(numbers, sizes.astype(int)) if high else rng.choice(numbers, setting.rows, p=share)
    rows = len(labels)
    labels = np.concatenate([labels, rng.choice(len(sizes), fresh, p=share)])
    probs = _members(rng, setting, labels, share)
    flipped = rng.random(len(labels)) < setting.wrong_labels
    labels = np.where(flipped, rng.integers(0, setting.classes, len(labels)), labels)
    return labels, probs, rows


def _members(rng: np.random.Generator, setting: Setting, labels: np.ndarray, share: np.ndarray) -> np.ndarray:
    shape = (len(labels), setting.classes)
    evidence = rng.normal(size=shape).astype(np.float32)
    positions = np.arange(len(labels))
    # Some images are hard for every member; every class is confused with one other class.
    evidence[positions, labels] += (setting.signal * rng.gamma(4.0, 0.25, len(labels))).astype(np.float32)
    evidence[positions, (labels + 1) % setting.classes] += rng.normal(1.0, 1.0, len(labels)).astype(np.float32)
    bias = np.float32(setting.favour) * np.log(share / share.mean()).astype(np.float32)
    noise = rng.uniform(*setting.noise, setting.members)
    if setting.dominating:
        noise[0] = setting.dominating
    least, most = setting.sharpness
    sharpness = np.exp(rng.uniform(np.log(least), np.log(most), setting.members))
    probs = np.empty((setting.members, *shape), np.float32)
    for m in range(setting.members):
        own = rng.normal(size=shape).astype(np.float32) * np.float32(noise[m])
        # Calibrated, up to `sharpness`: evidence of variance 1 + noise^2 and mean `signal` asks for this scale.
        scale = sharpness[m] * setting.signal / (1 + noise[m] ** 2) * 0.5
        logits = np.float32(scale) * (evidence + own + bias)
        probs[m] = np.exp(logits - logits.max(1, keepdims=True))
        probs[m] /= probs[m].sum(1, keepdims=True)
    return probs


@dataclass(frozen=True, slots=True)
class Outcome:
    """Gains of one simulated competition over equal weights."""

    claimed: float
    error: float  # the standard error printed beside the claim
    delivered: float
    over_argmax: float  # the gain on fresh rows over equal weights with argmax


def as_members(probs: np.ndarray) -> dict[str, ViewPredictions]:
    """(M, N, C) -> member -> predictions of one view."""
    ids = np.array([f"r{n:06}" for n in range(probs.shape[1])])
    return {f"m{m:02}": ViewPredictions(ids, ("identity",), p[:, None].astype(np.float16)) for m, p in enumerate(probs)}


def stratified_folds(labels: np.ndarray, seed: int) -> np.ndarray:
    order = np.argsort(labels + np.random.default_rng(seed).random(len(labels)))
    folds = np.empty(len(labels), int)
    folds[order] = np.arange(len(labels)) % FOLDS
    return folds


def simulate_competition(setting: Setting, seed: int, settings: ChainSettings, honest: Honest) -> Outcome:
    labels, probs, rows = draw(setting, seed, FRESH)
    oof, fresh = as_members(probs[:, :rows]), as_members(probs[:, rows:])
    result = fit_and_score_chain(OofRows(oof, labels[:rows], stratified_folds(labels[:rows], seed)), settings, honest)
    chain = result.chain
    undecided = replace(chain, blend=Blend("equal", "mean", dict.fromkeys(oof, 1 / len(oof))), decision=ARGMAX)
    rule = rules_for(MACRO_F1, settings.decision.rules)[0]
    fitted = fit_decision(rule, apply_chain(undecided, oof)[0], labels[:rows], MACRO_F1, settings.decision)
    equal = replace(undecided, decision=fitted)  # as the claimed gain has it
    scores = [
        MACRO_F1.evaluate(labels[rows:], apply_chain(candidate, fresh)[1], setting.classes)
        for candidate in (undecided, equal, chain)
    ]
    claimed = result.over_equal
    return Outcome(claimed.value, claimed.error, scores[2] - scores[1], scores[2] - scores[0])


def print_verdicts(name: str, outcomes: Sequence[Outcome]) -> bool:
    """Print a line; return whether both verdicts hold."""
    claimed, error, delivered, over_argmax = (
        np.array([getattr(outcome, key) for outcome in outcomes])
        for key in ("claimed", "error", "delivered", "over_argmax")
    )
    (gap, gap_error), (gain, gain_error), (whole, whole_error) = map(
        spread, (claimed - delivered, delivered, over_argmax)
    )
    honest = abs(gap) <= 2 * gap_error
    no_worse = whole + 2 * whole_error >= 0
    print(
        f"{name:26} {claimed.mean():+8.5f} +- {error.mean():.5f}   {gain:+8.5f} +- {gain_error:.5f}"
        f"   {gap:+8.5f} +- {gap_error:.5f}   {whole:+8.5f} +- {whole_error:.5f}   "
        f"{'holds' if honest else 'DOES NOT HOLD'}, {'holds' if no_worse else 'DOES NOT HOLD'}",
        flush=True,
    )
    return honest and no_worse


def spread(values: np.ndarray) -> tuple[float, float]:
    """Mean over seeds and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=24)
    arguments.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    options = arguments.parse_args()
    if options.seeds < 2:
        arguments.error("--seeds: 2 or more are needed for a standard error")
    params = load_params(Path(__file__).resolve().parents[1] / "params.yaml")
    # Fewer resamples only make the standard errors less precise.
    settings, honest = chain_settings(params, METRICS["macro_f1"]), replace(params.honest, resamples=RESAMPLES)
    start, verdicts = time.process_time(), []
    print(f"{'':26} {'claimed (its error)':21} {'delivered':21} {'claimed - delivered':21} over argmax")
    for name in SETTINGS:
        seeds = range(options.first, options.first + options.seeds)
        verdicts.append(
            print_verdicts(name, [simulate_competition(SETTINGS[name], seed, settings, honest) for seed in seeds])
        )
    print(
        f"RESULT: claims of the default blend and what it delivers, {len(SETTINGS)} settings of {options.seeds} seeds: "
        f"{'all verdicts hold' if all(verdicts) else 'NOT all hold'}; {time.process_time() - start:.0f} CPU seconds"
    )
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
