"""The flower-sized setting of benchmarks.simulation: --setting flowers.

Every seed draws predictions like those for the flowers (benchmarks/flowers_predictions.py): 16,465 out-of-fold rows to
choose on, twice as many fresh rows to be scored on. Even seeds have members of unequal strength, odd seeds near-equal ones. The
reference of every row is the equal blend with argmax. Our default is the complete chain of choices of `make blend`;
every other method is fitted on the same rows.

claimed: gain on the rows it was chosen on (for the default also its honest gain).  delivered: gain on fresh rows.
+-: standard error over the seeds.
"""

import time
from collections.abc import Mapping

import numpy as np

from benchmarks.flowers_predictions import CLASSES, draw_predictions
from competition.config.params import Honest
from competition.ensemble.blend import BlendSettings, fit_blend
from competition.ensemble.chain import ChainSettings, apply_chain, member_probs
from competition.ensemble.decision import DecisionSettings, fit_decision
from competition.ensemble.honest import fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested import OofRows
from competition.ensemble.policy import PolicySettings
from competition.ensemble.predictions import ViewPredictions

MACRO_F1 = METRICS["macro_f1"]
MEMBERS, FOLDS, FRESH = 8, 5, 2
DEFAULT = "default, honest"
ROWS = 16_465
BLEND = BlendSettings(("none", "temperature"), ("equal", "best", "bagged"), "mean", 50, 8, 100, 1.0, 0)
DECISION = DecisionSettings(("argmax", "prior"), 1, 20)
SETTINGS = ChainSettings(
    "macro_f1", PolicySettings("identity", "log_likelihood", "mean", 1, 0.0, 1e-3), BLEND, DECISION
)
HONEST = Honest(500, 0, 10)
OTHERS = [
    *((method, "argmax") for method in ("best", "greedy", "bagged", "coordinate", "nelder_mead", "optuna", "stacking")),
    *((method, rule) for method in ("equal", "bagged", "stacking") for rule in ("prior", "per_class")),
]


def as_members(probs: np.ndarray) -> dict[str, ViewPredictions]:
    ids = np.array([f"r{n:06}" for n in range(probs.shape[1])])
    return {f"m{m}": ViewPredictions(ids, ("identity",), p[:, None].astype(np.float16)) for m, p in enumerate(probs)}


def simulate_competition(seed: int, rows: int) -> dict[str, tuple[float, float]]:
    """name -> (claimed, delivered) gain over equal weights and argmax."""
    labels, probs = draw_predictions(seed, rows * (1 + FRESH), MEMBERS, spread=0.35 if seed % 2 == 0 else 0.05)
    oof, fresh = as_members(probs[:, :rows]), as_members(probs[:, rows:])
    oof_labels, fresh_labels = labels[:rows], labels[rows:]
    del probs
    rng = np.random.default_rng(seed)
    folds = np.empty(rows, int)
    folds[np.argsort(oof_labels + rng.random(rows))] = np.arange(rows) % FOLDS  # stratified
    result = fit_and_score_chain(OofRows(oof, oof_labels, folds), SETTINGS, HONEST)
    # The other methods get the same members, after the chain's temperature.
    oof_probs = {n: member_probs(result.chain, n, v) for n, v in oof.items()}
    fresh_probs = {n: member_probs(result.chain, n, v) for n, v in fresh.items()}

    def scores(name: tuple[str, str]) -> tuple[float, float]:
        blend = fit_blend(name[0], oof_probs, oof_labels, MACRO_F1, BLEND)
        mixed = blend.mix(oof_probs)
        decision = fit_decision(name[1], mixed, oof_labels, MACRO_F1, DECISION)
        fresh_decided = decision.labels(blend.mix(fresh_probs))
        return (
            MACRO_F1.evaluate(oof_labels, decision.labels(mixed), CLASSES),
            MACRO_F1.evaluate(fresh_labels, fresh_decided, CLASSES),
        )

    equal = np.array(scores(("equal", "argmax")))
    gains = {f"{m} + {r}": tuple(np.array(scores((m, r))) - equal) for m, r in OTHERS}
    decided = apply_chain(result.chain, fresh)[1]
    delivered = MACRO_F1.evaluate(fresh_labels, decided, CLASSES) - equal[1]
    gains["default, optimistic"] = (result.chosen_on - equal[0], delivered)
    gains[DEFAULT] = (result.over_equal.value, delivered)
    return gains


def simulate(first: int, seeds: int) -> int:
    """Print the table and the verdicts; 0 if both hold."""
    start, gains_by_seed = time.perf_counter(), []
    for seed in range(first, first + seeds):
        gains_by_seed.append(simulate_competition(seed, ROWS))
        print(f"seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
    # method -> (seeds, 2)
    gains = {name: np.array([gains_of_seed[name] for gains_of_seed in gains_by_seed]) for name in gains_by_seed[0]}
    show(gains)
    return 0 if all([delivers_most(gains), claims_are_unbiased(gains)]) else 1


def show(gains: Mapping[str, np.ndarray]) -> None:
    """gains: method -> (seeds, 2), claimed and delivered."""
    default_delivered = gains[DEFAULT][:, 1]
    print(f"\n{'gain over equal + argmax':32} {'claimed':>9} {'delivered':>9}   +-      beyond the default   +-")
    for name, gain in gains.items():
        (_, error), (beyond_default, beyond_error) = spread(gain[:, 1]), spread(gain[:, 1] - default_delivered)
        print(
            f"{name:32} {gain[:, 0].mean():+9.5f} {gain[:, 1].mean():+9.5f} {error:7.5f}   {beyond_default:+9.5f}  {beyond_error:12.5f}"
        )


def delivers_most(gains: Mapping[str, np.ndarray]) -> bool:
    """Verdict: no other method delivers more than the default by more than one standard error of the paired difference."""
    default_delivered = gains[DEFAULT][:, 1]
    gaps = {
        name: spread(gain[:, 1] - default_delivered) for name, gain in gains.items() if not name.startswith("default")
    }
    better = [f"{name} {gap:+.5f} +- {error:.5f}" for name, (gap, error) in gaps.items() if gap > error]
    print(
        f"delivers at least what every other method does, within one standard error: {verdict(not better, '; '.join(better))}"
    )
    return not better


def claims_are_unbiased(gains: Mapping[str, np.ndarray]) -> bool:
    """Verdict: the honest gain is the delivered gain within two standard errors of their difference."""
    gap, error = spread(gains[DEFAULT][:, 0] - gains[DEFAULT][:, 1])
    is_unbiased = abs(gap) <= 2 * error
    print(f"claims what it delivers, within two standard errors: {verdict(is_unbiased, f'{gap:+.5f} +- {error:.5f}')}")
    return is_unbiased


def spread(values: np.ndarray) -> tuple[float, float]:
    """Mean over seeds and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def verdict(holds: bool, numbers: str) -> str:
    return ("holds" if holds else "DOES NOT HOLD") + (f" ({numbers})" if numbers else "")
