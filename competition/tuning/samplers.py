"""Samplers and pruners by the names of tune.sampler and tune.pruner."""

import importlib
import warnings
import zlib
from collections.abc import Callable
from typing import Any

from competition.config.errors import UserError

FULL = 100  # a trial's progress in percent; scores are reported at these steps
# Percent of a trial before which median, asha and hyperband prune none. On digits the scores at 12 % say little about the end:
# with 12 as the first rung, successive halving pruned the best of 30 trials in 93 % of replays (docs/tuning.md).
FIRST_RUNG = 25
REDUCTION = 3  # asha, hyperband: a third of the trials goes on at each rung, with three times the work
STARTUP_TRIALS = 5  # trials before the sampler learns
UNPRUNED_TRIALS = 3  # first trials that median and percentile do not prune
GOES_ON = 67.0  # percentile: percent of the trials that go on at each report, from the first one on
# An exact sign-rank test of n folds has p-values down to 2^-n: .0625 after four folds, the first below this limit.
WILCOXON_P = 0.1
PACKAGES = {"gp": "torch", "cmaes": "cmaes"}


def make_sampler(name: str, seed: int) -> Any:
    """A sampler whose draws depend on the seed and the number of the trial, not on the process that draws.

    With one seed for all processes, workers and resumed studies would draw the same points again.
    Raises UserError if the package it needs is not installed.
    """
    from optuna import samplers

    if name in PACKAGES:
        _require(name, PACKAGES[name])
    startup = STARTUP_TRIALS
    create: dict[str, Callable[[int], Any]] = {
        "tpe": lambda seed: samplers.TPESampler(
            multivariate=True, group=True, constant_liar=True, n_startup_trials=startup, seed=seed
        ),
        "gp": lambda seed: samplers.GPSampler(n_startup_trials=startup, seed=seed),
        "cmaes": lambda seed: samplers.CmaEsSampler(
            n_startup_trials=startup, warn_independent_sampling=False, seed=seed
        ),
        "random": lambda seed: samplers.RandomSampler(seed=seed),
        "grid": lambda seed: samplers.RandomSampler(seed=seed),  # every point of the grid is enqueued
    }

    class SeededByNumber(samplers.BaseSampler):
        """Delegates to a sampler that is created for each trial."""

        sampler: Any = None

        def before_trial(self, study: Any, trial: Any) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # options that are experimental in Optuna 4
                self.sampler = create[name](zlib.crc32(f"{seed}/{trial.number}".encode()))
            self.sampler.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self.sampler.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self.sampler.sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return self.sampler.sample_independent(study, trial, param_name, param_distribution)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            if self.sampler is not None:
                self.sampler.after_trial(study, trial, state, values)

    return SeededByNumber()


def make_pruner(name: str) -> Any:
    """A pruner of scores reported at 0 to FULL percent of a trial; wilcoxon: at the number of a fold."""
    from optuna import pruners

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are marked experimental
        return {
            "none": pruners.NopPruner,
            "median": lambda: pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS, n_warmup_steps=FIRST_RUNG),
            "percentile": lambda: pruners.PercentilePruner(GOES_ON, n_startup_trials=UNPRUNED_TRIALS),
            "asha": lambda: pruners.SuccessiveHalvingPruner(min_resource=FIRST_RUNG, reduction_factor=REDUCTION),
            "hyperband": lambda: pruners.HyperbandPruner(
                min_resource=FIRST_RUNG, max_resource=FULL, reduction_factor=REDUCTION
            ),
            "wilcoxon": lambda: pruners.WilcoxonPruner(p_threshold=WILCOXON_P),
        }[name]()


def _require(sampler: str, package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError:
        raise UserError(
            f"tune.sampler: {sampler} needs the package {package}, which is not installed: "
            f"`.venv/bin/pip install {package}`, or set tune.sampler: tpe"
        ) from None
