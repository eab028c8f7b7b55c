"""Estimate time and cost before training: counts of steps and images, speed, sessions, machines and prices."""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.config.params import Member, Params
from competition.config.search_space import is_tuned
from competition.prepare.adapters import flowers, plants
from competition.training.device import round_up_batch

HOUR = 3600.0
START_SECONDS = 40.0  # imports and first compile of a process


@dataclass(frozen=True)
class Sizes:
    """Numbers of classes, labelled images and test images of a competition."""

    classes: int
    train: int
    test: int


# Sizes of the real competitions, to plan before downloading. Flowers: train and val pooled.
KNOWN = {
    "digits": Sizes(10, 1347, 450),
    "noisy_digits": Sizes(10, 1347, 450),
    "flowers": Sizes(len(flowers.CLASSES), sum(flowers.CLASSES.values()) + 3712, 7382),
    "plants": Sizes(len(plants.CLASSES), sum(plants.CLASSES.values()), 1821),
}


def sizes_of(data: Path, params: Params) -> Sizes:
    """Sizes of the downloaded or else of the known competition. Raises UserError if it is neither."""
    if (data / "manifest.json").exists():
        from competition.prepare.prepared import load_prepared

        prepared = load_prepared(data)
        return Sizes(len(prepared.competition.classes), len(prepared.part("train")), len(prepared.part("test")))
    competition = params.competition
    if competition.adapter not in KNOWN or competition.miniature:
        raise UserError(f"{competition.name}: numbers of classes and images are unknown; run `make download` first")
    return KNOWN[competition.adapter]


@dataclass(frozen=True)
class Load:
    """The work of one member: all folds, and its trials."""

    runs: float  # trainings to the end: folds, what pruning leaves of trials
    steps: int  # per run
    scored: int  # images per run scored with the identity view: the held-out fold after every epoch
    predicted: int  # images times views of all fold models: out-of-fold and test


# Mean cost of a trial as a share of a full one, expected with each pruner. An estimate from studies of digits
# (docs/tuning.md); the first trials of a study are never pruned, so short studies save less.
EXPECTED_SHARE = {"none": 1.0, "median": 0.6, "percentile": 0.5, "asha": 0.5, "hyperband": 0.6}
UNPRUNED_TRIALS = 3  # as competition.tuning.samplers has it


def load_of(member: Member, params: Params, name: str, sizes: Sizes, replicas: int) -> Load:
    train, tune, folds = member.train, params.tune, params.prepare.folds
    held_out = sizes.train / folds
    batch = round_up_batch(train.batch, replicas * train.accumulate)
    steps = max(int(sizes.train - held_out) // batch, 1) * train.epochs  # as in data.batches.steps_per_epoch
    predicted = (sizes.train + folds * sizes.test) * len(params.views_of(member))
    trainings = float(member.seeds * folds)
    if is_tuned(member, name, tune):
        share = (len(tune.folds) - 1) / (folds - 1)  # trials use the rows of these folds only
        full = tune.trials * max(len(tune.folds) - 1, 1) * share
        pruned = full * max(tune.trials - UNPRUNED_TRIALS, 0) / tune.trials * (1 - EXPECTED_SHARE[tune.pruner])
        # Compared are the best trial and the member's own values, on the last fold.
        trainings += full - pruned + 2 * tune.confirm_seeds * share
    return Load(trainings, steps, round(held_out * train.epochs), member.seeds * predicted)


@dataclass(frozen=True)
class Speed:
    """Seconds of one member on one machine."""

    ready: float  # once: building, compiling, the first step
    step: float  # one training step
    scored: float  # one image, identity view
    predicted: float  # one image under one view
    ready_to_predict: float  # once: compiling all views


@dataclass(frozen=True)
class Cost:
    """Seconds of one member."""

    train: float
    predict: float


def training_seconds(load: Load, speed: Speed) -> float:
    """Seconds of one training to the end, without compiling."""
    return load.steps * speed.step + load.scored * speed.scored


def cost_of(load: Load, speed: Speed) -> Cost:
    train = speed.ready + load.runs * training_seconds(load, speed)
    predict = speed.ready_to_predict + load.predicted * speed.predicted
    return Cost(train, predict)


def cost_on_machines(load: Load, speed: Speed, slots: int, slowdown: float) -> Cost:
    """Cost of one member whose fold models are trained, then predicted by, in a process each.

    slots: of these processes that run at once.  slowdown: seconds of a fold model there per second of `speed`.
    """
    fold_models = max(round(load.runs), 1)
    trained, predicted = training_seconds(load, speed), load.predicted / fold_models * speed.predicted
    train = time_on_machines([trained] * fold_models, slots, START_SECONDS + speed.ready, slowdown)
    predict = time_on_machines([predicted] * fold_models, slots, START_SECONDS + speed.ready_to_predict, slowdown)
    return Cost(train, predict)


def cost_of_features(member: Member, params: Params, sizes: Sizes, ready: float, each: float) -> Cost:
    """One pass of a frozen network over all images, by which all fold models, trials and heads are fitted in seconds.

    ready: seconds until it is compiled.  each: seconds of one image under one view.
    """
    assert member.head is not None
    views = params.views_of(member)
    fitted = set(member.head.views) | {"identity", *views}
    return Cost(ready + each * (sizes.train * len(fitted) + sizes.test * len(views)), 0.0)


def speed_by_preflight(
    train: Mapping[str, float], predict: Mapping[str, float], views: int, utilisation: float
) -> Speed:
    """Estimate the speed from two preflight results (JSON).  utilisation: roofline time / real time.

    Scoring the identity view is counted as one view's share of the prediction step.
    """
    each = predict["roofline"] / predict["batch"] / views / utilisation
    ready, ready_to_predict = (a["lower_seconds"] + a["compile_seconds"] for a in (train, predict))
    return Speed(ready, train["roofline"] / utilisation, each, each, ready_to_predict)


@dataclass(frozen=True)
class Sessions:
    sessions: int
    hours: float  # of accelerator, including the setup of every session
    share_of_week: float  # of the weekly quota
    weeks: int


def sessions_for(seconds: float, session_hours: float, weekly_hours: float, setup_hours: float) -> Sessions:
    """Divide the work into sessions; it can be resumed after any epoch.

    setup_hours: per session, for installing, decoding and compiling.
    """
    sessions = math.ceil(seconds / HOUR / (session_hours - setup_hours))
    hours = seconds / HOUR + sessions * setup_hours
    return Sessions(sessions, hours, hours / weekly_hours, math.ceil(hours / weekly_hours))


def time_on_machines(fold_models: Sequence[float], machines: int, start_seconds: float, slowdown: float = 1.0) -> float:
    """Seconds until the last fold model is trained. Give the longest fold models first, each to the machine that is free first.

    fold_models: seconds of each.  start_seconds: of the process that each fold model gets.
    slowdown: seconds with the failures of machines per second without any.
    """
    free = [0.0] * machines
    for seconds in sorted(fold_models, reverse=True):
        heapq.heapreplace(free, free[0] + (seconds + start_seconds) * slowdown)
    return max(free)


@dataclass(frozen=True)
class Bill:
    region: str
    kind: str  # on demand | preemptible
    dollars: float
    as_of: str


def bills(hours: float, topology: str, prices: Mapping[str, Any]) -> list[Bill]:
    """Cost of the accelerator, billed by the second, in every region with a known price, cheapest first.

    prices: topology -> list of {region, on_demand, preemptible, as_of}, dollars per hour of the whole slice.
    """
    known = [
        Bill(row["region"], kind.replace("_", " "), hours * row[kind], str(row["as_of"]))
        for row in prices.get(topology, ())
        for kind in ("on_demand", "preemptible")
        if row.get(kind) is not None
    ]
    return sorted(known, key=lambda bill: bill.dollars)


def duration(seconds: float) -> str:
    """Format seconds: 48 s, 12 min, 3.4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / HOUR:.1f} h"
