"""Train one fold model: epochs of full batches, and checkpoints that a thread writes meanwhile.

A run that was interrupted and resumed ends with the same weights, bit for bit, as one that was not. The learning-rate
schedule is `warmup_cosine`.
"""

import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from math import inf, isfinite, isnan, nan

import numpy as np

from competition.config.errors import UserError
from competition.config.faults import fault_point
from competition.config.params import Train
from competition.images.batches import TrainingBatches, TrainingPlan, steps_per_epoch
from competition.training.checkpoint import Checkpoints
from competition.training.engine import Engine, State
from competition.training.input_stall import InputStallDetector, StepTimes

CALL_SECONDS = 5.0  # a call of the training step takes about so long at most: a request to stop waits for its end
FIRST_STEPS = 4  # of the first call, whose time nobody knows
PROBED_STEPS = 200  # from which on a probed member is trained at its full learning rate and label smoothing


@dataclass(frozen=True)
class Epoch:
    """An epoch is over and scored. Closing the iterator at this event saves a checkpoint first."""

    epoch: int  # from 1
    loss: float  # mean over the epoch, on smoothed and augmented targets
    learning_rate: float  # of its last step; 0 for a head
    held_out: float | None = None  # the competition's metric on the held-out fold under the identity view
    inner: float | None = None  # on the inner validation part, which chooses the epoch; None without patience
    held_out_loss: float | None = None  # on the held-out fold, plain targets
    strength: float | None = None  # of the head of a frozen-feature member, chosen within its training rows


Scores = dict[str, float]  # "held_out", "held_out_loss" and "inner" of an Epoch, those that were computed


@dataclass(frozen=True)
class FoldRun:
    """What one fold model is trained from."""

    plan: TrainingPlan
    train: Train
    batches_at: Callable[[int], TrainingBatches]  # epoch, from 0 -> its batches; the same object while they stay equal
    scores_after: Callable[[int], Scores]  # epoch, 0 = initial weights -> scores of the weights in the engine
    score_sign: int = 1  # -1 if a lower score is better
    checkpoints: Checkpoints | None = None  # None: none are read or written
    initial_weights: Callable[[], State] | None = None  # called after the engine is reset; None: the engine's own


@dataclass
class StepsDone:
    """A call of the training step is over. Whoever sets `stop` gets a checkpoint of this step, and then Stopped."""

    step: int  # steps done
    total: int
    loss: float
    stop: bool = False


@dataclass(frozen=True)
class Trained:
    """The fold model is trained, and its weights are in the engine: the last event."""

    history: list[Epoch]
    # That of the weights in the engine: the last one, or with patience that of the best inner score. Epoch 0 are the initial weights with
    # a probed head.
    selected: Epoch
    scoring_seconds: float = 0.0  # of the epochs before the last, since the last start


Event = StepsDone | Epoch | StepTimes | Trained  # StepTimes: the device waits for data too long
Events = Generator[Event, None, None]


class Diverged(Exception):
    """The loss or the held-out predictions are not finite."""


class Stopped(Exception):
    """Training was stopped on request; its state is in the checkpoint, if checkpoints are written."""


def train_fold(engine: Engine, run: FoldRun, stall_detector: InputStallDetector | None = None) -> Events:
    """Train one fold model, from its newest complete checkpoint if there is one; yield what happens, at last Trained.

    Raises Diverged, and Stopped after an event with `stop` set.
    """
    try:
        yield from _train(engine, run, stall_detector)
    finally:
        if run.checkpoints is not None:
            run.checkpoints.wait()


def _train(engine: Engine, run: FoldRun, stall_detector: InputStallDetector | None) -> Events:
    plan, train, checkpoints = run.plan, run.train, run.checkpoints
    per_epoch = steps_per_epoch(len(plan.rows), engine.batch)
    total = per_epoch * train.epochs
    rates = warmup_cosine(train.learning_rate * share_after_probe(train, total), total, train.warmup)
    state = _start(engine, run)
    source: TrainingBatches | None = None
    most = min(FIRST_STEPS, train.steps_per_call)
    while state.step < len(rates):
        if train.patience and state.history and len(state.history) - state.best_epoch >= train.patience:
            break
        if source is not run.batches_at(state.step // per_epoch):
            source = run.batches_at(state.step // per_epoch)
            batches = engine.distributed(source.start(plan, state.step, len(rates)))
        steps = min(most, per_epoch - state.step % per_epoch)
        # Random numbers depend on the step and not on earlier calls, so that a resumed run draws the same ones.
        engine.reseed(plan.seed * 1_000 + plan.fold, state.step)
        call_rates = rates[state.step : state.step + steps]
        started = time.monotonic()
        loss = engine.train(batches, call_rates, state.step, train, per_epoch)
        seconds = time.monotonic() - started
        # All hosts take as many steps in a call, so the slowest one decides.
        most = min(engine.all_gather(max(1, min(train.steps_per_call, int(steps * CALL_SECONDS / max(seconds, 1e-9))))))
        stall = None
        if stall_detector is not None:
            stall = stall_detector.record(engine, source, call_rates, train, per_epoch, seconds)
        state.step, state.loss_sum = state.step + steps, state.loss_sum + loss * steps
        if not isfinite(loss):
            raise Diverged(
                f"the loss is {loss} near step {state.step} of {len(rates)} (learning rate {call_rates[-1]:.2g}); "
                "lower train.learning_rate or set train.clip_norm"
            )
        fault_point("train.after_steps")
        if stall is not None:
            yield stall
        epoch_ends = state.step % per_epoch == 0
        if epoch_ends:
            _end_epoch(run, engine, state, per_epoch, float(call_rates[-1]))
        done = StepsDone(state.step, len(rates), loss)
        yield done  # after the scores, so that no request to stop is missed
        is_due = checkpoints is not None and checkpoints.is_due(epoch_ends)
        # What one host says holds for all: hosts that save at different steps have no common checkpoint, and one that stops
        # alone leaves the others waiting.
        decisions = engine.all_gather(int(is_due) + 2 * int(done.stop))
        is_due, should_stop = any(one & 1 for one in decisions), any(one & 2 for one in decisions)
        if checkpoints and (is_due or should_stop):
            state.start_saving(checkpoints, engine)
        if epoch_ends:
            try:
                yield state.history[-1]
            except GeneratorExit:  # a mistake in a user's callback does not cost this epoch
                if checkpoints:
                    state.start_saving(checkpoints, engine)
                raise
        if should_stop:
            raise Stopped(f"stopped after step {state.step} of {len(rates)} of this fold model")
    selected = state.history[-1]
    if train.patience and state.best_epoch != selected.epoch:
        engine.load_weights(state.best_weights)
        before_training = Epoch(0, nan, 0.0, inner=state.start_inner)
        selected = state.history[state.best_epoch - 1] if state.best_epoch else before_training
    yield Trained(state.history, selected, state.scoring_seconds)


def warmup_cosine(peak: float, steps: int, warmup: float) -> np.ndarray:
    """Linear warm-up over the fraction `warmup` of the steps, then cosine decay to 0 (Loshchilov & Hutter 2017, SGDR).

    Returns (steps,) float32. The last rate is above 0, so every step has an effect.
    """
    warmup_steps = round(steps * warmup)
    rising = peak * np.arange(1, warmup_steps + 1) / max(warmup_steps, 1)
    decay_steps = steps - warmup_steps
    falling = peak * 0.5 * (1 + np.cos(np.pi * np.arange(1, decay_steps + 1) / (max(decay_steps, 1) + 1)))
    return np.concatenate([rising, falling]).astype(np.float32)


def share_after_probe(train: Train, steps: int) -> float:
    """The share of the learning rate and of the label smoothing that a training of so many steps uses.

    After a probe it grows with the square of their number up to PROBED_STEPS. A solved last layer leaves gradients that are small and
    mostly those of the smoothing, and the first steps of AdamW are as long as its rate whatever the gradient is: a short training has
    no time to repair what they do to the network.
    """
    return min(1.0, steps / PROBED_STEPS) ** 2 if train.probe else 1.0


@dataclass
class _TrainingState:
    """Progress of one fold model: with the engine's state, everything a checkpoint holds."""

    step: int = 0  # steps done
    loss_sum: float = 0.0  # of the steps of the current epoch
    history: list[Epoch] = field(default_factory=list)
    best_weights: State = field(default_factory=dict)  # of the best epoch; empty without patience
    best_epoch: int = 0  # 0 = none yet, or the initial weights
    start_inner: float | None = None  # inner score of the initial weights with a probed head
    scoring_seconds: float = 0.0  # see Trained

    def start_saving(self, checkpoints: Checkpoints, engine: Engine) -> None:
        """Save a checkpoint of this state and the engine's in a thread."""
        arrays = engine.state() | {f"best/{name}": value for name, value in self.best_weights.items()}
        history = [asdict(epoch) for epoch in self.history]
        facts = {"total": self.loss_sum, "history": history, "best_at": self.best_epoch, "start": self.start_inner}
        checkpoints.start_saving(self.step, arrays, facts)


def _end_epoch(run: FoldRun, engine: Engine, state: _TrainingState, per_epoch: int, rate: float) -> None:
    """Score the epoch that ends at `state.step`, add it to the history, and keep its weights if it is the best.

    per_epoch: steps of an epoch.  rate: learning rate of its last step.
    """
    epoch, started = state.step // per_epoch, time.monotonic()
    scores = run.scores_after(epoch)
    if epoch < run.train.epochs:
        state.scoring_seconds += time.monotonic() - started
    state.history.append(Epoch(epoch, round(state.loss_sum / per_epoch, 9), rate, **scores))
    state.loss_sum = 0.0
    if run.train.patience:  # only the inner validation part chooses the epoch, never the held-out fold
        best = state.history[state.best_epoch - 1].inner if state.best_epoch else state.start_inner
        # Greater is better; an undefined score is below all others.
        last_score, best_score = (
            -inf if score is None or isnan(score) else run.score_sign * score for score in (scores["inner"], best)
        )
        if last_score > best_score or not state.best_weights:
            state.best_weights, state.best_epoch = engine.weights(), epoch


def _start(engine: Engine, run: FoldRun) -> _TrainingState:
    """Load the newest checkpoint that every host has, or the initial weights without one.

    A host that was stopped earlier may lack the last checkpoint.
    """
    checkpoints, fold = run.checkpoints, run.plan.fold
    engine.reset(run.plan.seed)
    if run.initial_weights is not None:
        engine.load_weights(run.initial_weights())
    if len(set(folds := engine.all_gather(fold))) > 1:
        raise UserError(
            f"this host trains fold {fold} and others {', '.join(map(str, sorted(set(folds) - {fold})))}: their work/ folders "
            f"differ; copy one over the others, or `make train FOLD={min(folds)} FORCE=1` on all"
        )
    checkpoint = checkpoints.latest() if checkpoints else None
    while len(set(steps := engine.all_gather(checkpoint.step if checkpoint else 0))) > 1:
        checkpoint = checkpoints.latest(at_most=min(steps)) if checkpoints else None
    if checkpoint is None:
        state = _TrainingState()
        if run.train.probe and run.train.patience:  # no epoch may be better than the head that was solved
            state.start_inner, state.best_weights = run.scores_after(0)["inner"], engine.weights()
        return state
    arrays, facts = checkpoint.arrays, checkpoint.facts
    engine.load({name: value for name, value in arrays.items() if not name.startswith("best/")})
    return _TrainingState(
        checkpoint.step,
        float(facts["total"]),
        [Epoch(**epoch) for epoch in facts["history"]],
        {name.removeprefix("best/"): value for name, value in arrays.items() if name.startswith("best/")},
        int(facts["best_at"]),
        facts.get("start"),
    )
