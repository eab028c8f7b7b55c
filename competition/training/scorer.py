"""What every trainer does with a fold model: predict its held-out rows and others, score them, and write its files."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.faults import fault_point
from competition.config.params import ExcludedFolds, Train
from competition.ensemble.metrics import metric_named
from competition.ensemble.predictions import STORED_AS, ViewPredictions
from competition.files.manifest import atomic_write
from competition.images.labelled_images import Images
from competition.training import loop
from competition.training.checkpoint import Checkpoints, save_arrays
from competition.training.engine import State
from competition.training.fold_rows import FoldRows, deviation
from competition.training.input_stall import InputStallDetector

CURVE_ROWS = 1_000  # held-out rows, at most, behind a point of the curves: all of them would cost a tenth of a training


@dataclass(frozen=True)
class TrainingOptions:
    """How a training is saved, scored and watched."""

    checkpoints: Checkpoints | None = None  # None: none are read or written
    # Score the held-out rows after every epoch, or after those in the collection; otherwise only after the last.
    score_epochs: bool | Collection[int] = True
    stall_detector: InputStallDetector | None = None


DEFAULTS = TrainingOptions()


class FoldScorer(ABC):
    """The fold models of one member. `Trainer` trains networks, `HeadTrainer` fits heads to stored features."""

    def __init__(self, rows: FoldRows, metric: str) -> None:
        """metric: name of the competition's metric."""
        self.member, self.images, self.rows, self.metric = rows.member, rows.images, rows, metric_named(metric)
        self._scored: dict[int, ViewPredictions] = {}  # last epoch, once it is scored -> its out-of-fold predictions

    @abstractmethod
    def train(self, fold: ExcludedFolds, train: Train, options: TrainingOptions = DEFAULTS) -> loop.Events:
        """Train on all folds but the excluded ones; yield what happens, at last Trained."""

    @abstractmethod
    def weights(self) -> State:
        """What a fold model consists of: stored as weights.npz."""

    @abstractmethod
    def load_weights(self, weights: State) -> None:
        """Load the result of weights()."""

    @abstractmethod
    def _probabilities(self, images: Images, rows: np.ndarray, views: Sequence[str]) -> np.ndarray:
        """(n, V, C) float32 of readable rows by the model that was trained or loaded last."""

    def train_to_end(
        self, fold: ExcludedFolds, train: Train, score_epochs: bool | Collection[int] = True
    ) -> loop.Trained:
        """train() without checkpoints, for callers that show nothing meanwhile."""
        *_, trained = self.train(fold, train, TrainingOptions(None, score_epochs))
        assert isinstance(trained, loop.Trained)
        return trained

    def score_of(self, probs: ViewPredictions, fold: ExcludedFolds) -> float:
        """The competition's metric of predictions of the held-out rows, under the identity view."""
        targets = self.rows.targets_of(self.rows.held_out(fold))
        return self.metric.display(self.metric.evaluate(targets, probs.view("identity")))

    def _score_held_out(self, epoch: int, fold: ExcludedFolds, is_last: bool) -> loop.Scores:
        """The competition's metric and the mean loss of held-out rows after an epoch, for the curves of the report.

        At most CURVE_ROWS of the rows, the same ones after every epoch; after the last one all are predicted, and their predictions kept.
        The mean loss is that of plain targets: log loss, or the squared error in units of the targets' variance.
        """
        rows = self.rows.held_out(fold)
        shown = np.sort(np.random.default_rng(0).permutation(len(rows))[:CURVE_ROWS])
        predictions = self.held_out(fold, slice(None) if is_last else shown)
        if is_last:
            self._scored = {epoch: predictions}
        output = predictions.view("identity")[shown] if is_last else predictions.view("identity")
        targets = self.rows.targets_of(rows[shown])
        if self.rows.targets.kind == "regression":
            unit = deviation(self.rows.targets_of(self.rows.usable(fold)))
            loss = float(np.mean(((output[:, 0] - targets) / unit) ** 2))
        else:
            metric = metric_named("log_loss" if self.rows.targets.kind == "single" else "multilabel_log_loss")
            loss = metric.display(metric.evaluate(targets, output))
        return {"held_out": self.metric.display(self.metric.evaluate(targets, output)), "held_out_loss": loss}

    def out_of_fold(self, fold: ExcludedFolds, trained: loop.Trained) -> ViewPredictions:
        """Out-of-fold predictions of the model that `train` has just trained; those of its last score if still valid."""
        if trained.selected.epoch not in self._scored:
            self._scored = {trained.selected.epoch: self.held_out(fold)}
        return self._scored[trained.selected.epoch]

    def held_out(self, fold: ExcludedFolds, places: np.ndarray | slice = slice(None)) -> ViewPredictions:
        """Out-of-fold probabilities by the weights in the engine, under the identity view.  places: of the held-out rows.

        Raises Diverged if they are not finite: the last update may have overflowed after a loss that was finite.
        """
        rows = self.rows.held_out(fold)[places]
        probs = self._probabilities(self.images, rows, ["identity"])
        if not np.isfinite(probs).all():
            raise loop.Diverged(
                f"the model predicts NaN or infinity for {int((~np.isfinite(probs)).reshape(len(rows), -1).any(1).sum())} of "
                f"{len(rows)} held-out rows; lower train.learning_rate or set train.clip_norm"
            )
        kind = self.rows.targets.kind
        return ViewPredictions(self.images.ids[rows], ("identity",), probs.astype(STORED_AS[kind]), kind)

    def predict(self, weights: State | None, images: Images, rows: np.ndarray, views: Sequence[str]) -> ViewPredictions:
        """Predict every row of `rows` under every view.

        weights: of a fold model; None: those in the engine.
        An unreadable row gets the mean over the readable ones, an estimate of the class frequencies.
        """
        if weights is not None:
            self.load_weights(weights)
        is_readable = images.readable[rows]
        probs = np.zeros((len(rows), len(views), self.rows.classes), np.float32)
        if is_readable.any():
            probs[is_readable] = self._probabilities(images, rows[is_readable], views)
        probs[~is_readable] = probs[is_readable].mean(0) if is_readable.any() else 1 / self.rows.classes
        kind = self.rows.targets.kind
        return ViewPredictions(images.ids[rows], tuple(views), probs.astype(STORED_AS[kind]), kind)


def save_fold_model(
    trainer: FoldScorer, fold: ExcludedFolds, trained: loop.Trained, folder: Path
) -> tuple[list[Path], dict[str, object]]:
    """Write weights.npz, history.csv and oof.npz of the model that the trainer has just trained.

    Returns the files, and the scores and epochs for the manifest.
    """
    files = [folder / name for name in ("weights.npz", "history.csv", "oof.npz")]
    fault_point("fold.before_weights", files[0])
    save_arrays(files[0], trainer.weights())
    with atomic_write(files[1]) as temporary:
        pd.DataFrame(trained.history).to_csv(temporary, index=False)
    fault_point("fold.before_predictions", files[2])
    predictions = trainer.out_of_fold(fold, trained)
    predictions.save(files[2])
    selected, last = trained.selected, trained.history[-1]
    result = {"held_out": trainer.score_of(predictions, fold), "metric": trainer.metric.name}
    result |= {"epoch": selected.epoch, "epochs": last.epoch, "loss": last.loss}
    result["scoring_seconds"] = round(trained.scoring_seconds, 3)
    return files, result if selected.inner is None else result | {"inner": selected.inner}
