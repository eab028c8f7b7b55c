"""Run trials of a member: one compiled engine for all trials that can share it, scores during training, re-scoring."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from competition.config.params import Member, Train
from competition.config.search_space import compiled_key, compiled_values, with_values
from competition.tuning.choice import Comparison, compare, format_values, score_of_rows
from competition.tuning.samplers import FULL
from competition.tuning.study import Evaluation, Pruned, Report, Values
from competition.workspace.studies import folds_used_in_tuning
from competition.workspace.study_settings import confirmed_folds, scored_folds
from pipelines.terminal.runner import Job
from pipelines.terminal.trainer import open_trainer, start_device

if TYPE_CHECKING:
    from competition.images.labelled_images import Images
    from competition.training.device import Device
    from competition.training.loop import Epoch
    from competition.training.trainer import Trainer

MOST_TRAINERS = 3  # compiled engines kept at once; the least recently used one is dropped
# Parts of a fold model's epochs after which a trial is scored, for its first fold and for the others. Scoring every epoch would
# cost about a tenth of the time.
FIRST_FOLD, OTHER_FOLDS = (0.25, 0.5, 0.75, 1.0), (0.5, 1.0)


@dataclass
class _Progress:
    """Steps and times of one trial. Compiling ends with the first call of the engine, which reports first."""

    started: float  # time.monotonic()
    first: float = 0.0  # time of the first report; 0 = none yet
    first_steps: int = 0  # steps done by then
    fold_steps: int = 0  # steps of the current fold model
    steps: int = 0  # steps of finished fold models
    share: float = 0.0  # part of the trial that is trained

    def report(self, step: int, *_: object) -> None:
        self.fold_steps = step
        if not self.first:
            self.first, self.first_steps = time.monotonic(), step

    def end_fold(self) -> None:
        self.steps, self.fold_steps = self.steps + self.fold_steps, 0

    def seconds(self, is_compiled: bool) -> float:
        """Training time so far, scaled up from the time after the first call if that one compiled."""
        now, steps = time.monotonic(), self.steps + self.fold_steps
        if is_compiled or steps <= self.first_steps:
            return now - self.started
        return (now - self.first) * steps / (steps - self.first_steps)


class TrialRunner:
    """Evaluates values of searched parameters for one member. The device is opened with the first trial."""

    def __init__(self, job: Job, name: str) -> None:
        self._job, self._name = job, name
        self.member: Member = job.params.members[name]
        self._device: Device | None = None
        self._trainers: OrderedDict[str, Trainer] = OrderedDict()
        self._images: dict[int, Images] = {}  # image size -> images of the folds that may take part

    def evaluate(self, values: Values, report: Report) -> Evaluation:
        """Train and score one trial on the scored folds.

        Raises Pruned, and ArithmeticError if the loss is not finite.
        """
        from competition.training.loop import Diverged

        member, folds = with_values(self.member, values), scored_folds(self._job.params)
        trainer, is_compiled, building = self._trainer(member)
        by_fold = self._job.params.tune.pruner == "wilcoxon"
        progress, scores, predictions = _Progress(time.monotonic()), list[float](), list[np.ndarray]()
        try:
            for position, fold in enumerate(folds):
                watch = _Watch(trainer, report, scores, position, len(folds), member.train.epochs, progress, by_fold)
                try:
                    epochs, show = _scored_epochs(member.train, position), progress.report
                    trained = trainer.train(
                        fold, member.train, None, show, lambda: False, watch=epochs, on_epoch=watch.end_epoch
                    )
                except Diverged as error:
                    raise ArithmeticError(str(error)) from None
                progress.end_fold()
                # The score that the fold model itself would get: with patience, that of its best epoch.
                scores.append(trainer.metric.sign * trainer.selected_score(fold, trained))
                predictions.append(trainer.out_of_fold(fold, trained).view("identity"))
                progress.share = (position + 1) / len(folds)
                watch.end_fold()
        except _Stop:
            raise Pruned({"seconds": progress.seconds(is_compiled), "share": progress.share}) from None
        if not np.isfinite(scores).all():
            raise ArithmeticError(f"the scores are {scores}")
        seconds, facts = progress.seconds(is_compiled), dict[str, Any]()
        if not is_compiled:
            facts["compiled"] = round(max(building + time.monotonic() - progress.started - seconds, 0.0), 2)
            searched = format_values(compiled_values(member, self._job.params.tune.search))
            self._job.echo(
                f"tune {self._name}: building and compiling a network took {facts['compiled']:.1f} s"
                + (f" ({searched}; trials with these values share it)" if searched else "")
            )
        labels = np.concatenate([trainer.rows.held_out_targets(fold) for fold in folds])
        classes, seed = len(self._job.prepared.competition.classes), self._job.params.tune.seed
        _, standard_error = score_of_rows(labels, np.concatenate(predictions), trainer.metric, classes, seed)
        facts |= {"share": 1.0, "folds": [float(score) for score in scores]}
        return Evaluation(float(np.mean(scores)), standard_error, seconds, facts)

    def confirm(self, values: Values, seeds: int) -> Comparison:
        """Compare values with the member's own on a fold and on seeds that did not choose them."""
        folds = confirmed_folds(self._job.params)
        own = [self._predictions(self.member, folds, seed) for seed in range(1, seeds + 1)]
        new = [self._predictions(with_values(self.member, values), folds, seed) for seed in range(1, seeds + 1)]
        trainer, _, _ = self._trainer(self.member)
        labels = np.concatenate([trainer.rows.held_out_targets(fold) for fold in folds])
        classes, seed = len(self._job.prepared.competition.classes), self._job.params.tune.seed
        return compare(labels, own, new, trainer.metric, classes, seed)

    def _predictions(self, member: Member, folds: Sequence[int], seed: int) -> np.ndarray:
        """Out-of-fold probabilities of the folds by models trained with another seed.  seed: added to train.seed."""
        trainer, _, _ = self._trainer(member)
        train, predictions = replace(member.train, seed=member.train.seed + seed), []
        for fold in folds:
            trained = trainer.train(fold, train, None, lambda *_: None, lambda: False, watch=False)
            predictions.append(trainer.out_of_fold(fold, trained).view("identity"))
        return np.concatenate(predictions)

    def _trainer(self, member: Member) -> "tuple[Trainer, bool, float]":
        """(trainer with an engine compiled for this member, whether it was there already, seconds of building it)."""
        key, started = compiled_key(member), time.monotonic()
        if key in self._trainers:
            self._trainers.move_to_end(key)
            return self._trainers[key], True, 0.0
        self._device = self._device or start_device(self._job)
        while len(self._trainers) >= MOST_TRAINERS:
            self._trainers.popitem(last=False)
        from competition.images.labelled_images import restricted_to_folds

        title, images = f"tune {self._name}", self._images.get(member.image_size)
        select = partial(restricted_to_folds, folds=folds_used_in_tuning(self._job.params))
        trainer = open_trainer(self._job, member, title, device=self._device, images=images, select=select)
        self._images[member.image_size] = trainer.images
        self._trainers[key] = trainer
        return trainer, False, time.monotonic() - started


class _Stop(Exception):
    """The pruner stops the trial."""


@dataclass
class _Watch:
    """Reports the scores of one fold model of a trial to the pruner.

    Reported is the mean over the folds so far, at the percentage of the trial that is done; or with by_fold each fold's
    own score, at its number, because the test of Wilcoxon compares trials fold by fold.
    """

    trainer: "Trainer"
    report: Report
    scores: list[float]  # of finished folds
    position: int
    folds: int
    epochs: int
    progress: _Progress
    by_fold: bool

    def end_epoch(self, epoch: "Epoch") -> None:
        done = (self.position + epoch.epoch / self.epochs) / self.folds
        self.progress.share = done
        if self.by_fold or epoch.held_out is None or epoch.epoch == self.epochs:
            return
        score = self.trainer.metric.sign * epoch.held_out
        if self.report((sum(self.scores) + score) / (self.position + 1), round(FULL * done)):
            raise _Stop

    def end_fold(self) -> None:
        step = self.position if self.by_fold else round(FULL * (self.position + 1) / self.folds)
        score = self.scores[-1] if self.by_fold else sum(self.scores) / len(self.scores)
        if self.report(score, step) and self.position + 1 < self.folds:
            raise _Stop


def _scored_epochs(train: Train, position: int) -> set[int]:
    """Epochs, from 1, after which the held-out rows of a fold are scored.  position: of the fold in the trial."""
    return {max(1, round(train.epochs * part)) for part in (OTHER_FOLDS if position else FIRST_FOLD)}
