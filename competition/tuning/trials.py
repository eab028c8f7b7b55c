"""Run trials of a member: one compiled engine for all trials that can share it, scores during training, re-scoring."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.trial import Trial

from competition.config.params import Member, Params
from competition.config.search_space import Values, compiled_key, with_values
from competition.ensemble import bootstrap
from competition.tuning.choice import RESAMPLES, TrialGain, gain_over_own_values, origin_of
from competition.tuning.samplers import FULL
from competition.tuning.study import Evaluation

if TYPE_CHECKING:
    from competition.input_pipeline.labelled_images import Images
    from competition.training.trainer import Trainer

MOST_TRAINERS = 3  # compiled engines kept at once; the least recently used one is dropped
# Parts of a fold model's epochs after which a trial is scored, for its first fold and for the others. Scoring every epoch would
# cost about a tenth of the time.
FIRST_FOLD, OTHER_FOLDS = (0.25, 0.5, 0.75, 1.0), (0.5, 1.0)


class TrialRunner:
    """Evaluates values of searched parameters for one member."""

    def __init__(
        self, member: Member, params: Params, open_trainer: "Callable[[Member, Images | None], Trainer]"
    ) -> None:
        """open_trainer: builds the engine of a member, with images that are decoded already, or None."""
        self.member = member
        self._params, self._open_trainer = params, open_trainer
        # All of tune.folds but the last rank the trials, by their held-out scores. On the last one the best trial is compared
        # with the member's own values, with other seeds. A single fold is used for both.
        folds = list(dict.fromkeys(params.tune.folds))
        self.ranking_folds, self._confirming_fold = folds[:-1] or folds, folds[-1]
        self._trainers: OrderedDict[str, Trainer] = OrderedDict()
        self._images: dict[int, Images] = {}  # image size -> images of the folds that may take part

    def evaluate(self, values: Values, trial: Trial) -> Evaluation:
        """Train and score one trial on the folds that rank the trials.

        Reported to the pruner is the mean over the folds so far, at the percentage of the trial that is done.
        Raises TrialPruned, and ArithmeticError if the loss is not finite.
        """
        member, folds = with_values(self.member, values), self.ranking_folds
        trainer = self._trainer(member)
        # After the trainer, which starts TensorFlow without its start-up messages.
        from competition.training.trainer import Diverged, Epoch, Trained

        sign, epochs = trainer.metric.sign, member.train.epochs
        scores, predictions = list[float](), list[np.ndarray]()  # of finished folds; scores: greater is better

        def report(score: float, share: float) -> None:
            """share: part of the trial that is trained. Raises TrialPruned, but not for a trial that is complete."""
            trial.report(score, round(FULL * share))
            # The own values are compared in full.
            if origin_of(trial) != 0 and share < 1 and trial.should_prune():
                trial.set_user_attr("share", share)
                raise optuna.TrialPruned

        for position, fold in enumerate(folds):
            parts = OTHER_FOLDS if position else FIRST_FOLD
            scored_epochs = {max(1, round(epochs * part)) for part in parts}  # from 1
            try:
                for event in trainer.train(fold, member.train, score_epochs=scored_epochs):
                    match event:
                        case Epoch() if event.held_out is not None and event.epoch < epochs:
                            share = (position + event.epoch / epochs) / len(folds)
                            report((sum(scores) + sign * event.held_out) / (position + 1), share)
                        case Trained():
                            trained = event
                out_of_fold = trainer.out_of_fold(fold, trained)
                predictions.append(out_of_fold.view("identity"))
                # The score that the fold model itself would get: with patience, that of its best epoch.
                scores.append(sign * trainer.score_of(out_of_fold, fold))
            except Diverged as error:
                raise ArithmeticError(str(error)) from None
            report(sum(scores) / len(scores), len(scores) / len(folds))
        if not np.isfinite(scores).all():
            raise ArithmeticError(f"the scores are {scores}")
        labels = np.concatenate([trainer.fold_rows.targets_of(trainer.fold_rows.held_out(fold)) for fold in folds])
        scoring = bootstrap.Evaluation(trainer.metric, trainer.fold_rows.classes, RESAMPLES, self._params.tune.seed)
        output = trainer.metric.output_of(np.concatenate(predictions))
        standard_error = bootstrap.score_with_error(labels, output, scoring).error
        facts: dict[str, object] = {"share": 1.0, "folds": [float(score) for score in scores]}
        return Evaluation(float(np.mean(scores)), standard_error, facts)

    def confirm(self, values: Values, seeds: int) -> TrialGain:
        """Compare values with the member's own on a fold and on seeds that did not choose them."""
        fold, tables = self._confirming_fold, list[list[np.ndarray]]()  # probabilities of the fold, one table per seed
        for member in (self.member, with_values(self.member, values)):
            trainer, of_seeds = self._trainer(member), []
            for seed in range(1, seeds + 1):
                train = replace(member.train, seed=member.train.seed + seed)
                trained = trainer.train_to_end(fold, train, score_epochs=False)
                of_seeds.append(trainer.out_of_fold(fold, trained).view("identity"))
            tables.append(of_seeds)
        own, new = tables
        labels = trainer.fold_rows.targets_of(trainer.fold_rows.held_out(fold))
        return gain_over_own_values(labels, own, new, trainer.metric, trainer.fold_rows.classes, self._params.tune.seed)

    def _trainer(self, member: Member) -> "Trainer":
        """A trainer with an engine compiled for this member, the one that is there already if there is one."""
        key = compiled_key(member)
        if key in self._trainers:
            self._trainers.move_to_end(key)
            return self._trainers[key]
        while len(self._trainers) >= MOST_TRAINERS:
            self._trainers.popitem(last=False)
        trainer = self._open_trainer(member, self._images.get(member.image_size))
        self._images[member.image_size] = trainer.images
        self._trainers[key] = trainer
        return trainer
