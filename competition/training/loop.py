"""Train one fold model: epochs of full batches, a checkpoint after each, the same bits whether or not it was interrupted."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite

from competition.data.batches import Feeder, TrainingRows, steps_per_epoch
from competition.params import Train
from competition.training.checkpoint import Checkpoints
from competition.training.engine import Engine, StepValues
from competition.training.schedule import warmup_cosine

STEPS_PER_CALL = 64  # steps between two looks at the world: stop signals, progress, a loss that is no number


@dataclass(frozen=True)
class Epoch:
    epoch: int  # from 1
    loss: float  # mean over the epoch, smoothed and augmented targets
    learning_rate: float  # of its last step
    held_out: float  # the competition's metric on the held-out fold by the identity view; nan when not looked at


class Diverged(Exception):
    """The loss became NaN or infinite."""


class Stopped(Exception):
    """A stop was asked for; what was trained so far is in the checkpoint."""


def train_fold(
    engine: Engine,
    feeder: Feeder,
    plan: TrainingRows,
    train: Train,
    checkpoints: Checkpoints | None,
    held_out: Callable[[int], float],
    progress: Callable[[int, int, str], None],
    stop: Callable[[], bool],
) -> list[Epoch]:
    """Leaves the trained weights in `engine` and returns the history. Goes on from the newest whole checkpoint (None: keeps none).

    held_out(epoch) -> score or nan.  progress(steps done, steps in all, text).  stop() -> True asks to end.
    Raises Diverged, Stopped.
    """
    per_epoch = steps_per_epoch(len(plan.rows), engine.batch)
    rates = warmup_cosine(train.learning_rate, per_epoch * train.epochs, train.warmup)
    values = StepValues(train.weight_decay, train.clip_norm)
    engine.reset(plan.seed)
    history, step, total = _resume(engine, checkpoints)
    batches = engine.distributed(feeder.start(plan, step))
    while step < len(rates):
        ahead = min(STEPS_PER_CALL, per_epoch - step % per_epoch)
        engine.reseed(plan.seed * 1_000 + plan.fold, step)
        loss = engine.train(batches, rates[step : step + ahead], step, values)
        if not isfinite(loss):
            raise Diverged(
                f"the loss is {loss} near step {step + ahead} of {len(rates)} (learning rate {rates[step + ahead - 1]:.2g}); "
                "lower train.learning_rate or set train.clip_norm"
            )
        step, total = step + ahead, total + loss * ahead
        progress(step, len(rates), f"loss {loss:.3f}")
        if step % per_epoch == 0:
            done = step // per_epoch
            history.append(Epoch(done, total / per_epoch, float(rates[step - 1]), held_out(done)))
            total = 0.0
        if checkpoints and (step % per_epoch == 0 or stop()):
            facts = {"total": total, "history": [asdict(epoch) for epoch in history]}
            checkpoints.save(step, engine.state(), facts)
        if stop():
            raise Stopped(f"stopped after step {step} of {len(rates)}")
    return history


def _resume(engine: Engine, checkpoints: Checkpoints | None) -> tuple[list[Epoch], int, float]:
    found = checkpoints.latest() if checkpoints else None
    if found is None:
        return [], 0, 0.0
    step, arrays, facts, _ = found
    engine.load(arrays)
    return [Epoch(**epoch) for epoch in facts["history"]], step, float(facts["total"])
