"""Run trials of a member: one compiled engine for all trials that can share it, scores during training, re-scoring."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.trial import Trial

from competition.config.params import Member, Params
from competition.config.search_space import AT_RUN_TIME, Values, compiled_key, own_values, with_values
from competition.ensemble import bootstrap
from competition.tuning.choice import RESAMPLES, TrialGain, format_values, gain_over_own_values
from competition.tuning.samplers import FULL
from competition.tuning.study import Evaluation, should_prune

if TYPE_CHECKING:
    from competition.images.labelled_images import Images
    from competition.training.loop import Epoch
    from competition.training.scorer import FoldScorer

MOST_TRAINERS = 3  # compiled engines kept at once; the least recently used one is dropped
# Parts of a fold model's epochs after which a trial is scored, for its first fold and for the others. Scoring every epoch would
# cost about a tenth of the time.
FIRST_FOLD, OTHER_FOLDS = (0.25, 0.5, 0.75, 1.0), (0.5, 1.0)


@dataclass
class _Progress:
    """Steps, times and scores of one trial, and its reports to the pruner.

    Reported is the mean over the folds so far, at the percentage of the trial that is done; or with by_fold each fold's own
    score, at its number, because the test of Wilcoxon compares trials fold by fold.
    """

    trial: Trial
    sign: int  # of the metric
    folds: int
    epochs: int
    by_fold: bool
    is_compiled: bool  # an earlier trial has compiled the engine; else the first call does, and it reports first
    started: float = field(default_factory=time.monotonic)
    first: float = 0.0  # time of the first report; 0 = none yet
    first_steps: int = 0  # steps done by then
    fold_steps: int = 0  # steps of the current fold model
    steps: int = 0  # steps of finished fold models
    share: float = 0.0  # part of the trial that is trained
    scores: list[float] = field(default_factory=list)  # of finished folds, greater is better

    def end_step(self, step: int) -> None:
        self.fold_steps = step
        if not self.first:
            self.first, self.first_steps = time.monotonic(), step

    def end_epoch(self, epoch: "Epoch") -> None:
        position = len(self.scores)
        self.share = (position + epoch.epoch / self.epochs) / self.folds
        if not self.by_fold and epoch.held_out is not None and epoch.epoch < self.epochs:
            self._report((sum(self.scores) + self.sign * epoch.held_out) / (position + 1), round(FULL * self.share))

    def end_fold(self, score: float) -> None:
        self.steps, self.fold_steps = self.steps + self.fold_steps, 0
        self.scores.append(score)
        self.share = len(self.scores) / self.folds
        if self.by_fold:
            self._report(score, len(self.scores) - 1)
        else:
            self._report(sum(self.scores) / len(self.scores), round(FULL * self.share))

    def _report(self, score: float, step: int) -> None:
        """Raises TrialPruned, but not for a trial that is complete."""
        if should_prune(self.trial, score, step) and len(self.scores) < self.folds:
            self.trial.set_user_attr("seconds", self.seconds())
            self.trial.set_user_attr("share", self.share)
            raise optuna.TrialPruned

    def seconds(self) -> float:
        """Training time so far, scaled up from the time after the first call if that one compiled."""
        now, steps = time.monotonic(), self.steps + self.fold_steps
        if self.is_compiled or steps <= self.first_steps:
            return now - self.started
        return (now - self.first) * steps / (steps - self.first_steps)


class TrialRunner:
    """Evaluates values of searched parameters for one member."""

    def __init__(
        self,
        member: Member,
        params: Params,
        open_trainer: "Callable[[Member, Images | None], FoldScorer]",
        show: Callable[[str], None],
    ) -> None:
        """
        open_trainer: builds the engine of a member, with images that are decoded already, or None.
        show: gets a line for each network that is compiled.
        """
        self.member = member
        self._params, self._open_trainer, self._show = params, open_trainer, show
        # All of tune.folds but the last rank the trials, by their held-out scores. On the last one the best trial is compared
        # with the member's own values, with other seeds. A single fold is used for both.
        folds = list(dict.fromkeys(params.tune.folds))
        self.ranking_folds, self._confirming_folds = folds[:-1] or folds, folds[-1:]
        self._trainers: OrderedDict[str, FoldScorer] = OrderedDict()
        self._images: dict[int, Images] = {}  # image size -> images of the folds that may take part

    def evaluate(self, values: Values, trial: Trial) -> Evaluation:
        """Train and score one trial on the folds that rank the trials.

        Raises TrialPruned, and ArithmeticError if the loss is not finite.
        """
        member, folds, tune = with_values(self.member, values), self.ranking_folds, self._params.tune
        trainer, is_compiled, building = self._trainer(member)
        # After the trainer, which starts TensorFlow without its start-up messages.
        from competition.training.loop import Diverged, Epoch, StepsDone, Trained
        from competition.training.scorer import TrainingOptions

        by_fold = tune.pruner == "wilcoxon"
        sign, epochs, predictions = trainer.metric.sign, member.train.epochs, list[np.ndarray]()
        progress = _Progress(trial, sign, len(folds), epochs, by_fold, is_compiled)
        for position, fold in enumerate(folds):
            parts = OTHER_FOLDS if position else FIRST_FOLD
            scored_epochs = {max(1, round(epochs * part)) for part in parts}  # from 1
            try:
                for event in trainer.train(fold, member.train, TrainingOptions(None, scored_epochs)):
                    match event:
                        case StepsDone():
                            progress.end_step(event.step)
                        case Epoch():
                            progress.end_epoch(event)
                        case Trained():
                            trained = event
                out_of_fold = trainer.out_of_fold(fold, trained)
                predictions.append(out_of_fold.view("identity"))
                # The score that the fold model itself would get: with patience, that of its best epoch.
                score = sign * trainer.score_of(out_of_fold, fold)
            except Diverged as error:
                raise ArithmeticError(str(error)) from None
            progress.end_fold(score)
        if not np.isfinite(progress.scores).all():
            raise ArithmeticError(f"the scores are {progress.scores}")
        seconds, facts = progress.seconds(), dict[str, object]()
        if not is_compiled and member.head is None:
            compiling = round(max(building + time.monotonic() - progress.started - seconds, 0.0), 2)
            facts["compiled"] = compiling
            compiled_in = {k: v for k, v in own_values(member, tune.search).items() if k not in AT_RUN_TIME}
            searched = format_values(compiled_in)
            self._show(
                f"building and compiling a network took {compiling:.1f} s"
                + (f" ({searched}; trials with these values share it)" if searched else "")
            )
        labels = np.concatenate([trainer.rows.targets_of(trainer.rows.held_out(fold)) for fold in folds])
        probs = np.concatenate(predictions)
        scoring = bootstrap.Evaluation(trainer.metric, trainer.rows.classes, RESAMPLES, tune.seed)
        standard_error = bootstrap.score_with_error(labels, trainer.metric.output_of(probs), scoring).error
        facts |= {"share": 1.0, "folds": [float(score) for score in progress.scores]}
        return Evaluation(float(np.mean(progress.scores)), standard_error, seconds, facts)

    def confirm(self, values: Values, seeds: int) -> TrialGain:
        """Compare values with the member's own on a fold and on seeds that did not choose them."""
        folds = self._confirming_folds
        own = [self._predictions(self.member, folds, seed) for seed in range(1, seeds + 1)]
        new = [self._predictions(with_values(self.member, values), folds, seed) for seed in range(1, seeds + 1)]
        trainer, _, _ = self._trainer(self.member)
        labels = np.concatenate([trainer.rows.targets_of(trainer.rows.held_out(fold)) for fold in folds])
        return gain_over_own_values(labels, own, new, trainer.metric, trainer.rows.classes, self._params.tune.seed)

    def _predictions(self, member: Member, folds: Sequence[int], seed: int) -> np.ndarray:
        """Out-of-fold probabilities of the folds by models trained with another seed.  seed: added to train.seed."""
        trainer, _, _ = self._trainer(member)
        train, predictions = replace(member.train, seed=member.train.seed + seed), []
        for fold in folds:
            trained = trainer.train_to_end(fold, train, score_epochs=False)
            predictions.append(trainer.out_of_fold(fold, trained).view("identity"))
        return np.concatenate(predictions)

    def _trainer(self, member: Member) -> "tuple[FoldScorer, bool, float]":
        """(trainer with an engine compiled for this member, whether it was there already, seconds of building it)."""
        key, started = compiled_key(member), time.monotonic()
        if key in self._trainers:
            self._trainers.move_to_end(key)
            return self._trainers[key], True, 0.0
        while len(self._trainers) >= MOST_TRAINERS:
            self._trainers.popitem(last=False)
        trainer = self._open_trainer(member, self._images.get(member.image_size))
        self._images[member.image_size] = trainer.images
        self._trainers[key] = trainer
        return trainer, False, time.monotonic() - started
