"""Train one fold model: epochs of full batches, a checkpoint after each, the same bits whether or not it was interrupted."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from math import inf, isfinite, isnan
from typing import Any

from competition.config.errors import UserError
from competition.config.params import Train
from competition.data.batches import TrainingBatches, TrainingPlan, steps_per_epoch
from competition.training.checkpoint import Checkpoints
from competition.training.engine import Engine, State, StepValues
from competition.training.input_stall import InputStallDetector
from competition.training.schedule import warmup_cosine


@dataclass(frozen=True)
class Epoch:
    epoch: int  # from 1
    loss: float  # mean over the epoch, smoothed and augmented targets
    learning_rate: float  # of its last step
    held_out: float | None  # the competition's metric on the held-out fold by the identity view; None when not computed
    inner: float | None = None  # the same on the inner validation part, which chooses the epoch; None without patience


@dataclass(frozen=True)
class Trained:
    history: list[Epoch]
    kept_epoch: int  # whose weights are in the engine: the last, or with patience the best on the inner validation part

    @property
    def kept(self) -> Epoch:
        return self.history[self.kept_epoch - 1]


class Diverged(Exception):
    """The loss became NaN or infinite."""


class Stopped(Exception):
    """A stop was asked for; what was trained so far is in the checkpoint."""


def train_fold(
    engine: Engine,
    feeder_at: Callable[[int], TrainingBatches],
    plan: TrainingPlan,
    train: Train,
    checkpoints: Checkpoints | None,
    held_out: Callable[[int], float | None],
    sign: int,
    progress: Callable[[int, int, str], None],
    stop: Callable[[], bool],
    start: Callable[[], State] | None = None,
    pace: InputStallDetector | None = None,
    inner: Callable[[], float] | None = None,
) -> Trained:
    """Leaves the trained weights in `engine`. Goes on from the newest whole checkpoint (None: keeps none).

    feeder_at(epoch from 0) -> its batches.  held_out(epoch from 1) -> score or None, for information: it chooses nothing.
    inner() -> score on rows that are neither trained on nor held out, by which patience keeps the best epoch; needed
    with train.patience.  sign: -1 where a lower score is better.
    progress(steps done, steps in all, text).  stop() -> True asks to end.
    start() -> weights to begin with, asked for after the engine was reset; None: the engine's initial ones.
    pace: is told how long the steps take and wait for data.
    Raises Diverged, Stopped.
    """
    if engine.keeps_average != (train.ema > 0):
        own = "above 0" if engine.keeps_average else "0"
        raise UserError(
            f"train.ema is {train.ema}, but the member's own is {own}: what is compiled in; keep both on one side"
        )
    if train.patience and inner is None:
        raise ValueError("patience needs an inner validation part: the held-out fold must not choose the epoch")
    per_epoch = steps_per_epoch(len(plan.rows), engine.batch)
    rates = warmup_cosine(train.learning_rate, per_epoch * train.epochs, train.warmup)
    values = step_values(train, per_epoch)
    engine.reset(plan.seed)
    if start is not None:
        engine.load_weights(start())
    run = _resumed(engine, checkpoints, plan.fold)
    feeder: TrainingBatches | None = None
    while run.step < len(rates) and not run.out_of_patience(train.patience):
        if engine.uses_fit or feeder is not feeder_at(run.step // per_epoch):
            feeder = feeder_at(run.step // per_epoch)
            batches = engine.distributed(feeder.start(plan, run.step))
        ahead = min(train.steps_per_call, per_epoch - run.step % per_epoch)
        engine.reseed(plan.seed * 1_000 + plan.fold, run.step)
        now = rates[run.step : run.step + ahead]
        began, waited = time.monotonic(), feeder.waited
        loss = engine.train(batches, now, run.step, values)
        if pace is not None:
            pace.note(engine, feeder, now, values, time.monotonic() - began, feeder.waited - waited)
        run.step, run.total = run.step + ahead, run.total + loss * ahead
        if not isfinite(loss):
            raise Diverged(
                f"the loss is {loss} near step {run.step} of {len(rates)} (learning rate {rates[run.step - 1]:.2g}); "
                "lower train.learning_rate or set train.clip_norm"
            )
        progress(run.step, len(rates), f"loss {loss:.3f}")
        epoch_ends = run.step % per_epoch == 0
        if epoch_ends:
            done = run.step // per_epoch
            chosen_by = inner() if train.patience and inner is not None else None
            rate = float(rates[run.step - 1])
            run.history.append(Epoch(done, run.total / per_epoch, rate, held_out(done), chosen_by))
            run.total = 0.0
            if train.patience and run.is_best(sign):
                run.best, run.best_at = engine.weights(), done
        if checkpoints and (epoch_ends or stop()):
            checkpoints.save(run.step, run.arrays(engine), run.facts())
        if stop():
            raise Stopped(f"stopped after step {run.step} of {len(rates)}")
    return run.finished(engine, bool(train.patience))


def step_values(train: Train, per_epoch: int) -> StepValues:
    """Steps per epoch turn what is said in epochs into steps."""
    same = {field.name: getattr(train, field.name) for field in fields(StepValues) if field.name != "freeze_steps"}
    return StepValues(**same, freeze_steps=train.freeze_epochs * per_epoch)


@dataclass
class _Run:
    """How far a fold model is."""

    step: int
    total: float  # sum of the losses of this epoch's steps
    history: list[Epoch]
    best: State  # weights of the best epoch; empty where none is chosen

    best_at: int = 0  # its number; 0 = none yet

    def is_best(self, sign: int) -> bool:
        *before, now = (_comparable(epoch.inner, sign) for epoch in self.history)
        return all(now > score for score in before)

    def out_of_patience(self, patience: int) -> bool:
        return bool(patience and self.history) and len(self.history) - self.best_at >= patience

    def arrays(self, engine: Engine) -> State:
        return engine.state() | {f"best/{name}": value for name, value in self.best.items()}

    def facts(self) -> dict[str, Any]:
        return {"total": self.total, "history": [asdict(epoch) for epoch in self.history], "best_at": self.best_at}

    def finished(self, engine: Engine, chosen: bool) -> Trained:
        last = len(self.history)
        if not chosen or self.best_at == last:
            return Trained(self.history, last)
        engine.load_weights(self.best)
        return Trained(self.history, self.best_at)


def _comparable(score: float | None, sign: int) -> float:
    """Greater is better; a score that is not defined is worse than any other."""
    return -inf if score is None or isnan(score) else sign * score


def _resumed(engine: Engine, checkpoints: Checkpoints | None, fold: int) -> _Run:
    """From the newest checkpoint that every host has: one that was stopped may have written one epoch less."""
    if len(set(told := engine.all_gather(fold))) > 1:
        raise UserError(
            f"this host trains fold {fold} and others {', '.join(map(str, sorted(set(told) - {fold})))}: their work/ folders "
            f"differ; copy one over the others, or `make train FOLD={min(told)} FORCE=1` on all"
        )
    found = checkpoints.latest() if checkpoints else None
    while len(set(steps := engine.all_gather(found[0] if found else 0))) > 1:
        found = checkpoints.latest(at_most=min(steps)) if checkpoints else None
    if found is None:
        return _Run(0, 0.0, [], {})
    step, arrays, facts, _ = found
    best = {name.removeprefix("best/"): value for name, value in arrays.items() if name.startswith("best/")}
    engine.load({name: value for name, value in arrays.items() if not name.startswith("best/")})
    return _Run(
        step, float(facts["total"]), [Epoch(**epoch) for epoch in facts["history"]], best, int(facts["best_at"])
    )
