"""The flower-sized setting of benchmarks.simulation: --setting flowers.

Every seed draws a world like the flowers' (benchmarks/flowers_world.py): 16,465 out-of-fold rows to choose on, twice
as many fresh rows to be judged by. Even seeds have members of unequal strength, odd seeds near-equal ones. The
reference of every row is the equal blend with argmax. Our default is the whole chain of choices, as `make blend` makes
it; every other method is fitted on the same rows.

claimed: gain on the rows of the choice (for the default its honest gain too).  delivered: gain on fresh rows.
+-: standard error over the seeds.
"""

import time
from collections.abc import Mapping

import numpy as np

from benchmarks.flowers_world import CLASSES, world
from competition.ensemble.blend import BlendSettings, fit_blend
from competition.ensemble.chain import ChainSettings, apply_chain, member_probs
from competition.ensemble.decision import DecisionSettings, fit_decision
from competition.ensemble.honest import HonestSettings, honest_chain
from competition.ensemble.metrics import METRICS
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
HONEST = HonestSettings(500, 0, 10)
OTHERS = [
    *((method, "argmax") for method in ("best", "greedy", "bagged", "coordinate", "nelder_mead", "optuna", "stacking")),
    *((method, rule) for method in ("equal", "bagged", "stacking") for rule in ("prior", "per_class")),
]


def members(probs: np.ndarray) -> dict[str, ViewPredictions]:
    ids = np.array([f"r{n:06}" for n in range(probs.shape[1])])
    return {f"m{m}": ViewPredictions(ids, ("identity",), p[:, None].astype(np.float16)) for m, p in enumerate(probs)}


def one_world(seed: int, rows: int) -> dict[str, tuple[float, float]]:
    """name -> (claimed, delivered) gain over equal weights and argmax."""
    labels, probs = world(seed, rows * (1 + FRESH), MEMBERS, spread=0.35 if seed % 2 == 0 else 0.05)
    seen, fresh = members(probs[:, :rows]), members(probs[:, rows:])
    truth, blind = labels[:rows], labels[rows:]
    del probs
    rng = np.random.default_rng(seed)
    folds = np.empty(rows, int)
    folds[np.argsort(truth + rng.random(rows))] = np.arange(rows) % FOLDS  # stratified
    made = honest_chain(seen, truth, folds, SETTINGS, HONEST)
    # The other methods get the same members: every one after the chain's temperature.
    old = {n: member_probs(made.chain, n, v) for n, v in seen.items()}
    new = {n: member_probs(made.chain, n, v) for n, v in fresh.items()}

    def scores(name: tuple[str, str]) -> tuple[float, float]:
        blend = fit_blend(name[0], old, truth, MACRO_F1, BLEND)
        mixed = blend.mix(old)
        decision = fit_decision(name[1], mixed, truth, MACRO_F1, DECISION)
        after = decision.labels(blend.mix(new))
        return (
            MACRO_F1.score_labels(truth, decision.labels(mixed), CLASSES),
            MACRO_F1.score_labels(blind, after, CLASSES),
        )

    equal = np.array(scores(("equal", "argmax")))
    gains = {f"{m} + {r}": tuple(np.array(scores((m, r))) - equal) for m, r in OTHERS}
    decided = apply_chain(made.chain, fresh)[1]
    delivered = MACRO_F1.score_labels(blind, decided, CLASSES) - equal[1]
    gains["default, on the rows chosen on"] = (made.chosen_on - equal[0], delivered)
    gains[DEFAULT] = (made.over_equal.value, delivered)
    return gains


def simulate(first: int, seeds: int) -> int:
    """Print the table and the verdicts; 0 if both hold."""
    start, worlds = time.perf_counter(), []
    for seed in range(first, first + seeds):
        worlds.append(one_world(seed, ROWS))
        print(f"seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
    gains = {name: np.array([w[name] for w in worlds]) for name in worlds[0]}  # (seeds, 2)
    show(gains)
    return 0 if all([delivers(gains), claims_what_it_delivers(gains)]) else 1


def show(gains: Mapping[str, np.ndarray]) -> None:
    """gains: method -> (seeds, 2), claimed and delivered."""
    ours = gains[DEFAULT][:, 1]
    print(f"\n{'gain over equal + argmax':32} {'claimed':>9} {'delivered':>9}   +-      beyond the default   +-")
    for name, gain in gains.items():
        (_, error), (beyond, its_error) = spread(gain[:, 1]), spread(gain[:, 1] - ours)
        print(
            f"{name:32} {gain[:, 0].mean():+9.5f} {gain[:, 1].mean():+9.5f} {error:7.5f}   {beyond:+9.5f}  {its_error:12.5f}"
        )


def delivers(gains: Mapping[str, np.ndarray]) -> bool:
    """Verdict: no other method delivers more than ours by more than a standard error of the paired difference."""
    ours = gains[DEFAULT][:, 1]
    gaps = {name: spread(gain[:, 1] - ours) for name, gain in gains.items() if not name.startswith("default")}
    more = [f"{name} {gap:+.5f} +- {error:.5f}" for name, (gap, error) in gaps.items() if gap > error]
    print(
        f"delivers at least what every other method does, within one standard error: {told(not more, '; '.join(more))}"
    )
    return not more


def claims_what_it_delivers(gains: Mapping[str, np.ndarray]) -> bool:
    """Verdict: the honest gain is the delivered gain within two standard errors of their difference."""
    gap, error = spread(gains[DEFAULT][:, 0] - gains[DEFAULT][:, 1])
    held = abs(gap) <= 2 * error
    print(f"claims what it delivers, within two standard errors: {told(held, f'{gap:+.5f} +- {error:.5f}')}")
    return held


def spread(values: np.ndarray) -> tuple[float, float]:
    """Mean over seeds and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def told(held: bool, numbers: str) -> str:
    return ("holds" if held else "DOES NOT HOLD") + (f" ({numbers})" if numbers else "")
