"""How much each pruner saves, and how often it would have pruned the best trial, replayed on one study without pruning.

    make tune MEMBER=cnn SET="tune.trials=30 tune.pruner=none"
    python -m benchmarks.pruning work/digits/tune/cnn/<digest>/study.log

Each replay gives the trials of the study to a pruner in another random order, except that the first trial, with the member's
own values, stays first and is never pruned, as in a study. "Lost" is the difference between the best score of the study and
the best score among the trials that a replay completes. The sampler does not react to the replay, so the figures say what
pruning does to given trials, not what a sampler makes of it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FULL = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--orders", type=int, default=200, help="random orders of the trials")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    trials = unpruned_trials(options.journal)
    print(
        f"{len(trials)} unpruned trials, {options.orders} orders; mean cost, share of replays that prune the best, lost score"
    )
    for name, pruner in pruners().items():
        results = np.array([replay(trials, pruner, seed) for seed in range(options.orders)])
        share, pruned, lost = results.mean(0)
        print(f"{name:>28}: cost {share:.3f}, best pruned {pruned:.2f}, lost {lost:.4f} +- {results[:, 2].std():.4f}")
    return 0


def unpruned_trials(journal: Path) -> list[Any]:
    import optuna

    from competition.tuning.journal import open_journal

    storage = open_journal(journal)
    (name,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).get_trials()
    return [trial for trial in trials if trial.state.name == "COMPLETE"]


def pruners() -> dict[str, Any]:
    """The project's pruners, and successive halving and the median with other starts."""
    from optuna.pruners import PercentilePruner, SuccessiveHalvingPruner

    from competition.tuning.samplers import make_pruner

    named = {name: make_pruner(name) for name in ("none", "median", "percentile", "asha", "hyperband")}
    rungs = [(first, reduction) for first in (12, 25, 38) for reduction in (2, 3)]
    halving = {
        f"halving from {first} %, by {reduction}": SuccessiveHalvingPruner(first, reduction)
        for first, reduction in rungs
    }
    medians = {
        f"best {share} % from {first} %": PercentilePruner(share, n_startup_trials=3, n_warmup_steps=first)
        for first in (12, 25, 38)
        for share in (33, 50, 67)
    }
    return {**named, **halving, **medians}


def replay(trials: Sequence[Any], pruner: Any, seed: int) -> tuple[float, float, float]:
    """(mean share of a full trial, 1 if the best trial was pruned, best score minus best score completed)."""
    import optuna

    order = [trials[0], *(trials[n + 1] for n in np.random.default_rng(seed).permutation(len(trials) - 1))]
    study = optuna.create_study(direction="maximize", pruner=pruner, study_name=f"replay{seed}")
    shares, completed = [], []
    for position, trial in enumerate(order):
        again, share = study.ask(), 1.0
        for step, value in sorted(trial.intermediate_values.items()):
            again.report(value, step)
            if again.should_prune() and position and step < FULL:
                share = step / FULL
                break
        if share == 1.0:
            study.tell(again, trial.value)
            completed.append(trial.value)
        else:
            study.tell(again, state=optuna.trial.TrialState.PRUNED)
        shares.append(share)
    best = max(trial.value for trial in trials)
    return float(np.mean(shares)), float(best not in completed), best - max(completed)


if __name__ == "__main__":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sys.exit(main())
