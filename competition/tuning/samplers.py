"""Samplers and pruners by the names of tune.sampler and tune.pruner."""

import importlib
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import partial

from optuna import pruners, samplers
from optuna.study import Study
from optuna.trial import FrozenTrial

from competition.config.errors import UserError
from competition.config.search_space import Values
from competition.tuning.choice import origin_of

FULL = 100  # a trial's progress in percent; scores are reported at these steps
# Percent of a trial before which median, asha and hyperband prune none. On digits the scores at 12 % say little about the end:
# with 12 as the first rung, successive halving pruned the best of 30 trials in 93 % of replays.
FIRST_RUNG = 25
REDUCTION = 3  # asha, hyperband: a third of the trials goes on at each rung, with three times the work
STARTUP_TRIALS = 5  # trials before the sampler learns
UNPRUNED_TRIALS = 3  # first trials that median and percentile do not prune
GOES_ON = 67.0  # percentile: percent of the trials that go on at each report, from the first one on
PACKAGES = {"gp": "torch", "cmaes": "cmaes"}
SAMPLERS: dict[str, Callable[..., samplers.BaseSampler]] = {  # name -> function of the seed
    "tpe": partial(
        samplers.TPESampler, multivariate=True, group=True, constant_liar=True, n_startup_trials=STARTUP_TRIALS
    ),
    "gp": partial(samplers.GPSampler, n_startup_trials=STARTUP_TRIALS),
    "cmaes": partial(samplers.CmaEsSampler, n_startup_trials=STARTUP_TRIALS, warn_independent_sampling=False),
    "random": samplers.RandomSampler,
    "grid": samplers.RandomSampler,  # the points of the grid are those of the first trials
}
# Of scores reported at 0 to FULL percent of a trial.
PRUNERS: dict[str, Callable[[], pruners.BasePruner]] = {
    "none": pruners.NopPruner,
    "median": partial(pruners.MedianPruner, n_startup_trials=UNPRUNED_TRIALS, n_warmup_steps=FIRST_RUNG),
    "percentile": partial(pruners.PercentilePruner, GOES_ON, n_startup_trials=UNPRUNED_TRIALS),
    "asha": partial(pruners.SuccessiveHalvingPruner, min_resource=FIRST_RUNG, reduction_factor=REDUCTION),
    "hyperband": partial(pruners.HyperbandPruner, FIRST_RUNG, FULL, REDUCTION),
}


class SeededByNumber(samplers.PartialFixedSampler):
    """A sampler whose draws depend on the seed and the number of the trial, not on the process that draws.

    With one seed for all processes, workers and resumed studies would draw the same points again.
    points: values of the first trials; the sampler draws only what they lack.
    Raises UserError if the package that the sampler needs is not installed.
    """

    def __init__(self, name: str, seed: int, points: Sequence[Values] = ()) -> None:
        self._name, self._seed, self._points = name, seed, points
        if package := PACKAGES.get(name):
            try:
                importlib.import_module(package)
            except ImportError:
                raise UserError(
                    f"tune.sampler: {name} needs the package {package}, which is not installed: "
                    f"`.venv/bin/pip install {package}`, or set tune.sampler: tpe"
                ) from None

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        number = origin_of(trial)
        point = self._points[number] if number < len(self._points) else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # samplers and options that are experimental
            sampler = SAMPLERS[self._name](seed=zlib.crc32(f"{self._seed}/{number}".encode()))
            super().__init__(dict(point), sampler)  # of this trial
        super().before_trial(study, trial)
