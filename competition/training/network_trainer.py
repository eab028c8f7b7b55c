"""A member whose network is trained: all fold models and trials of it with one compiled engine.

A training that was interrupted and resumed ends with the same weights, bit for bit, as one that was not.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf, isfinite, isnan, nan

import keras
import numpy as np

from competition.config.errors import UserError
from competition.config.faults import fault_point
from competition.config.params import Train
from competition.config.plugins import NO_PLUGINS, Plugins
from competition.ensemble.metrics import Metric
from competition.ensemble.view_transforms import get_views
from competition.input_pipeline.augment import Augmentation
from competition.input_pipeline.batch_threads import Loading
from competition.input_pipeline.batches import TrainingBatches, TrainingPlan, prediction_batches, steps_per_epoch
from competition.input_pipeline.labelled_images import Images
from competition.prepare.targets import training_of
from competition.training.checkpoint import Checkpoint, Checkpoints
from competition.training.device import Device, host_share
from competition.training.device_augmentation import augmented, augments_on_device
from competition.training.engine import Engine, State
from competition.training.fold_rows import FoldRows, deviation
from competition.training.heads import linear_probe
from competition.training.optimizer import warmup_cosine
from competition.training.trainer import Diverged, Epoch, EpochSet, Events, Scores, StepsDone, Stopped, Trained, Trainer

CALL_SECONDS = 5.0  # a call of the training step takes about so long at most: a request to stop waits for its end
FIRST_STEPS = 4  # of the first call, whose time nobody knows
PROBED_STEPS = 200  # from which on a probed member is trained at its full learning rate and label smoothing


class NetworkTrainer(Trainer):
    """Trains and predicts any number of folds and trials of one member with one compiled engine."""

    def __init__(
        self,
        fold_rows: FoldRows,
        metric: Metric,
        engine: Engine,
        device: Device,
        plugins: Plugins = NO_PLUGINS,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """metric, alive: see Trainer.  engine: of this member, on this device.  plugins: those of the parameters."""
        super().__init__(fold_rows, metric, alive)
        self.engine, self._device, self._plugins = engine, device, plugins
        self._batches: dict[tuple[Augmentation, int], TrainingBatches] = {}
        # (N, F) of all rows by the initial weights, once a fold model has needed them.
        self._features: np.ndarray | None = None

    def train(
        self, fold: int, train: Train, checkpoints: Checkpoints | None = None, score_epochs: EpochSet = True
    ) -> Events:
        """Train on all folds but one, from the newest complete checkpoint if there is one; yield what happens.

        train: the member's parameters, or a trial's with the same batch, dropout and precision, which are compiled in.
        Nothing is trained until the events are taken, see train_to_end(). Raises Diverged, and Stopped after an event with `stop` set.
        """
        train, engine = training_of(self.fold_rows.targets.kind, train), self.engine
        plan = self.fold_rows.plan(fold, train)
        per_epoch = steps_per_epoch(len(plan.rows), engine.batch)
        total = per_epoch * train.epochs
        if (share := share_after_probe(train, total)) < 1:
            plan = self.fold_rows.plan(fold, replace(train, label_smoothing=share * train.label_smoothing))
        rates = warmup_cosine(train.learning_rate * share, total, train.warmup)
        training = _Training(train, plan, per_epoch, score_epochs)
        self._scored = {}
        self._start(training, checkpoints)
        last_source: TrainingBatches | None = None
        most, should_stop, patience = min(FIRST_STEPS, train.steps_per_call), False, train.patience or inf
        while training.step < total and len(training.history) - training.best_epoch < patience and not should_stop:
            first, epoch = training.step, training.step // per_epoch
            if (source := self.training_batches(train, epoch)) is not last_source:
                batches, last_source = engine.distributed(source.start(plan, first, total)), source
            steps = min(most, per_epoch - first % per_epoch)
            # Random numbers depend on the step and not on earlier calls, so that a resumed run draws the same ones.
            engine.reseed(plan.seed * 1_000 + plan.fold, first)
            started = time.monotonic()
            with source.errors_as_raised():
                loss = engine.take_steps(batches, rates[first : first + steps], first, train, per_epoch)
            in_time = int(steps * CALL_SECONDS / max(time.monotonic() - started, 1e-9))
            # All hosts take as many steps in a call, so the slowest one decides.
            most = min(engine.all_gather(max(1, min(train.steps_per_call, in_time))))
            training.step, training.loss_sum = first + steps, training.loss_sum + loss * steps
            rate = float(rates[training.step - 1])
            if not isfinite(loss):
                raise Diverged(
                    f"the loss is {loss} near step {training.step} of {total} (learning rate {rate:.2g}); lower "
                    "train.learning_rate or set train.clip_norm"
                )
            fault_point("train.after_steps")
            epoch_ends = training.step % per_epoch == 0
            if epoch_ends:
                self._end_epoch(training, rate)
            done = StepsDone(training.step, total, loss)
            yield done  # after the scores, so that no request to stop is missed
            is_due = checkpoints is not None and checkpoints.is_due(epoch_ends)
            # What one host says holds for all: hosts that save at different steps have no common checkpoint, and one that stops
            # alone leaves the others waiting.
            decisions = engine.all_gather(int(is_due) + 2 * int(done.stop))
            is_due, should_stop = any(one & 1 for one in decisions), any(one & 2 for one in decisions)
            if checkpoints and (is_due or should_stop):
                training.save(checkpoints, engine)
            if epoch_ends:
                yield training.history[-1]
        if should_stop:
            raise Stopped(f"stopped after step {training.step} of {total} of this fold model")
        selected = training.history[-1]
        if train.patience and training.best_epoch != selected.epoch:
            engine.load_weights(training.best_weights)
            before_training = Epoch(0, nan, 0.0, inner=training.start_inner)
            selected = training.history[training.best_epoch - 1] if training.best_epoch else before_training
        yield Trained(training.history, selected)

    def _start(self, training: "_Training", checkpoints: Checkpoints | None) -> None:
        """Load the newest checkpoint that every host has, or the initial weights without one.

        A host that was stopped earlier may lack the last checkpoint.
        """
        engine, train, fold = self.engine, training.train, training.plan.fold
        engine.reset(training.plan.seed)
        if train.probe or self.fold_rows.targets.kind == "regression":
            engine.load_weights(self._initial_weights(training.plan))
        if len(set(folds := engine.all_gather(fold))) > 1:
            raise UserError(
                f"this host trains fold {fold} and others {', '.join(map(str, sorted(set(folds) - {fold})))}: their work/ folders "
                f"differ; copy one over the others, or `make train FOLD={min(folds)} FORCE=1` on all"
            )
        checkpoint = checkpoints.latest() if checkpoints else None
        while len(set(steps := engine.all_gather(checkpoint.step if checkpoint else 0))) > 1:
            checkpoint = checkpoints.latest(at_most=min(steps)) if checkpoints else None
        if checkpoint is not None:
            engine.load({name: value for name, value in checkpoint.arrays.items() if not name.startswith("best/")})
            training.continue_from(checkpoint)
        elif train.probe and train.patience:  # no epoch may be better than the head that was solved
            training.start_inner, training.best_weights = self._scores_after(training, 0)["inner"], engine.weights()

    def _initial_weights(self, plan: TrainingPlan) -> State:
        """The initial weights, with a layer that depends on this fold's training rows.

        A regression: mean and deviation of their targets in layer "unit"; else a last layer fitted to their features.
        """
        rows = plan.rows
        if self.fold_rows.targets.kind == "regression":
            unit = {"unit/mean": plan.targets[rows].mean(), "unit/deviation": deviation(plan.targets[rows])}
            replaced = {name: np.full((), value, np.float32) for name, value in unit.items()}
        else:
            if self._features is None:
                count, backbone = len(self.images.ids), self.engine.backbone
                batches = prediction_batches(self.images.pixels, np.arange(count), self.engine.predict_batch)
                # Compiled, which takes a third of the memory and a quarter of the time of calling the model.
                parts = [backbone.predict_on_batch(images.astype(np.float32)) for images in batches]
                self._features = np.concatenate(parts)[:count].astype(np.float32)
            features, labels, weights = self._features[rows], self.images.labels[rows], plan.weights[rows]
            groups = np.arange(len(rows)) if self.images.groups is None else self.images.groups[rows]
            kernel, bias = linear_probe(features, labels, weights, self.fold_rows.classes, groups, plan.seed)
            replaced = {"logits/kernel": kernel, "logits/bias": bias}
        return {
            name: next((new for ending, new in replaced.items() if name.endswith(ending)), value)
            for name, value in self.engine.weights().items()
        }

    def _end_epoch(self, training: "_Training", rate: float) -> None:
        """Score the epoch that has ended, add it to the history, and keep its weights if it is the best.

        rate: learning rate of its last step.
        """
        train, epoch = training.train, len(training.history) + 1
        scores = self._scores_after(training, epoch)
        training.history.append(Epoch(epoch, round(training.loss_sum / training.per_epoch, 9), rate, **scores))
        training.loss_sum = 0.0
        if train.patience:  # only the inner validation part chooses the epoch, never the held-out fold
            best = training.history[training.best_epoch - 1].inner if training.best_epoch else training.start_inner
            # Greater is better; an undefined score is below all others.
            last_score, best_score = (
                -inf if score is None or isnan(score) else self.metric.sign * score for score in (scores["inner"], best)
            )
            if last_score > best_score or not training.best_weights:
                training.best_weights, training.best_epoch = self.engine.weights(), epoch

    def _scores_after(self, training: "_Training", epoch: int) -> Scores:
        """Scores of the weights in the engine.  epoch: 0 = the initial weights."""
        scores, train, scored = Scores(), training.train, training.score_epochs
        if train.patience:
            rows = self.fold_rows.inner_validation(training.plan.fold, train)
            probs = self._predict(None, self.images, rows, ["identity"])[:, 0]
            scores["inner"] = self.metric.display(self.metric.evaluate(self.fold_rows.targets_of(rows), probs))
        is_last = epoch == train.epochs
        if epoch and (is_last or (scored if isinstance(scored, bool) else epoch in scored)):
            scores |= self._score_held_out(epoch, training.plan.fold, is_last)
        return scores

    def training_batches(self, train: Train, epoch: int) -> TrainingBatches:
        """Training batches of an epoch, from 0; the same object for the same augmentation and image size."""
        size = self.member.training_size
        if epoch < round(train.epochs * train.low_resolution_epochs):
            size = min(size, max(32, round(size * train.low_resolution_size) // 8 * 8))  # backbones need 32 pixels
        key = (augmentation_of(train, self._plugins), size)
        if key not in self._batches:
            pixels, batch, device = self.images.pixels, self.engine.batch, self._device
            share = tuple(host_share(device, batch).tolist())
            loading = Loading(device.threads, share=share, on_device=augments_on_device(device))
            self._batches[key] = TrainingBatches(pixels, self.fold_rows.classes, batch, *key, loading)
        return self._batches[key]

    def first_batch(self, fold: int, train: Train) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first augmented training batch of the last epoch's size: (B, H, W, 3) uint8, (B, C) targets, (B,) weights."""
        source = self.training_batches(train, train.epochs - 1)
        with source.errors_as_raised():
            images, targets, weights = next(source.start(self.fold_rows.plan(fold, train)).as_numpy_iterator())
        images, targets = (keras.ops.convert_to_numpy(part) for part in augmented(images, targets))
        return images, targets, weights

    def weights(self) -> State:
        return self.engine.weights()

    def _predict(self, weights: State | None, images: Images, rows: np.ndarray, views: Sequence[str]) -> np.ndarray:
        if weights is not None:
            self.engine.load_weights(weights)
        batches = prediction_batches(images.pixels, rows, self.engine.predict_batch, lambda begun: self._alive())
        return self.engine.probabilities(batches, len(rows), get_views(views, self._plugins))


@dataclass
class _Training:
    """One fold model in training: what it is trained from, and its progress, which a checkpoint holds with the engine's state."""

    train: Train
    plan: TrainingPlan
    per_epoch: int  # steps
    score_epochs: EpochSet  # see Trainer.train
    step: int = 0  # steps done
    loss_sum: float = 0.0  # of the steps of the current epoch
    history: list[Epoch] = field(default_factory=list)
    best_weights: State = field(default_factory=dict)  # of the best epoch; empty without patience
    best_epoch: int = 0  # 0 = none yet, or the initial weights
    start_inner: float | None = None  # inner score of the initial weights with a probed head

    def save(self, checkpoints: Checkpoints, engine: Engine) -> None:
        """Save a checkpoint, which `continue_from` reads."""
        arrays = engine.state() | {f"best/{name}": value for name, value in self.best_weights.items()}
        history = [asdict(epoch) for epoch in self.history]
        # The keys are those of existing checkpoints.
        facts = {"total": self.loss_sum, "history": history, "best_at": self.best_epoch, "start": self.start_inner}
        checkpoints.save(self.step, arrays, facts)

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """Take over the progress in a checkpoint."""
        facts, names = checkpoint.facts, [name for name in checkpoint.arrays if name.startswith("best/")]
        self.step, self.loss_sum = checkpoint.step, float(facts["total"])
        self.history = [Epoch(**epoch) for epoch in facts["history"]]
        self.best_weights = {name.removeprefix("best/"): checkpoint.arrays[name] for name in names}
        self.best_epoch, self.start_inner = int(facts["best_at"]), facts.get("start")


def share_after_probe(train: Train, steps: int) -> float:
    """The share of the learning rate and of the label smoothing that a training of so many steps uses.

    After a probe it grows with the square of their number up to PROBED_STEPS. A solved last layer leaves gradients that are small and
    mostly those of the smoothing, and the first steps of AdamW are as long as its rate whatever the gradient is: a short training has
    no time to repair what they do to the network.
    """
    return min(1.0, steps / PROBED_STEPS) ** 2 if train.probe else 1.0


def augmentation_of(train: Train, plugins: Plugins = NO_PLUGINS) -> Augmentation:
    """The augmentation parameters among the training parameters."""
    options = {each.name: getattr(train, each.name) for each in fields(Augmentation) if each.name != "plugins"}
    return Augmentation(**{**options, "augment": tuple(train.augment.items()), "plugins": plugins})
