"""Train the fold models of a member and predict by them, on one device: used by tuning, training and prediction.

`Trainer` is what every trainer does with a fold model: it predicts held-out and other rows, and scores them. network_trainer.py trains
networks, head_trainer.py fits heads to stored features.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.faults import fault_point
from competition.config.params import Train
from competition.ensemble.metrics import METRICS, Metric
from competition.ensemble.stored_predictions import STORED_AS, ViewPredictions
from competition.files.manifest import atomic_write
from competition.input_pipeline.labelled_images import Images
from competition.training.checkpoint import Checkpoints, save_arrays
from competition.training.engine import State
from competition.training.fold_rows import FoldRows, deviation

CURVE_ROWS = 1_000  # held-out rows, at most, behind a point of the curves: all of them would cost a tenth of a training


@dataclass
class StepsDone:
    """A call of the training step is over. Whoever sets `stop` gets a checkpoint of this step, and then Stopped."""

    step: int  # steps done
    total: int
    loss: float
    stop: bool = False


@dataclass(frozen=True)
class Epoch:
    """An epoch is over and scored."""

    epoch: int  # from 1
    loss: float  # mean over the epoch, on smoothed and augmented targets
    learning_rate: float  # of its last step; 0 for a head
    held_out: float | None = None  # the competition's metric on the held-out fold under the identity view
    inner: float | None = None  # on the inner validation part, which chooses the epoch; None without patience
    held_out_loss: float | None = None  # on the held-out fold, plain targets
    strength: float | None = None  # of the head of a frozen-feature member, chosen within its training rows


@dataclass(frozen=True)
class Trained:
    """The fold model is trained, and its weights can be predicted with: the last event."""

    history: list[Epoch]
    # The epoch whose weights are kept: the last one, or with patience the one of the best inner score. Number 0 stands for the
    # initial weights with a probed head.
    selected: Epoch


Events = Generator[StepsDone | Epoch | Trained, None, None]
Scores = dict[str, float]  # "held_out", "held_out_loss" and "inner" of an Epoch, those that were computed
EpochSet = bool | Collection[int]  # numbers of epochs, from 1; True = all, False = none


class Diverged(Exception):
    """The loss or the held-out predictions are not finite."""


class Stopped(Exception):
    """Training was stopped on request; its state is in the checkpoint, if checkpoints are written."""


class Trainer(ABC):
    """The fold models of one member. `NetworkTrainer` trains networks, `HeadTrainer` fits heads to stored features."""

    def __init__(self, fold_rows: FoldRows, metric: Metric, alive: Callable[[], None]) -> None:
        """metric: of the competition.  alive: heartbeat, called before every prediction batch."""
        self.member, self.images, self.fold_rows = fold_rows.member, fold_rows.images, fold_rows
        self.metric, self._alive = metric, alive
        self._scored: dict[int, ViewPredictions] = {}  # last epoch, once it is scored -> its out-of-fold predictions

    @abstractmethod
    def train(
        self, fold: int, train: Train, checkpoints: Checkpoints | None = None, score_epochs: EpochSet = True
    ) -> Events:
        """Train on all folds but one; yield what happens, at last Trained.

        checkpoints: None = none are read or written.  score_epochs: the epochs after which held-out rows are scored; after the last
        one they always are.
        """

    @abstractmethod
    def weights(self) -> State:
        """What a fold model consists of: stored as weights.npz."""

    @abstractmethod
    def _predict(self, weights: State | None, images: Images, rows: np.ndarray, views: Sequence[str]) -> np.ndarray:
        """(n, V, C) float32 probabilities, or values, of readable rows.  weights: see predict()."""

    def train_to_end(self, fold: int, train: Train, score_epochs: EpochSet = True) -> Trained:
        """train() without checkpoints, for callers that show nothing meanwhile."""
        *_, trained = self.train(fold, train, None, score_epochs)
        assert isinstance(trained, Trained)
        return trained

    def predict(self, weights: State | None, images: Images, rows: np.ndarray, views: Sequence[str]) -> ViewPredictions:
        """Predict every row of `rows` under every view.

        weights: the result of weights(); None: those of the model that was trained, or predicted by, last.
        An unreadable row gets the mean over the readable ones, an estimate of the class frequencies.
        Raises Diverged if they are not finite: the last update may have overflowed after a loss that was finite.
        """
        is_readable = images.readable[rows]
        probs = np.zeros((len(rows), len(views), self.fold_rows.classes), np.float32)
        if is_readable.any():
            probs[is_readable] = self._predict(weights, images, rows[is_readable], views)
        if failed := int((~np.isfinite(probs).all((1, 2))).sum()):
            raise Diverged(
                f"the model predicts NaN or infinity for {failed} of {len(rows)} rows; lower train.learning_rate or set train.clip_norm"
            )
        probs[~is_readable] = probs[is_readable].mean(0) if is_readable.any() else 1 / self.fold_rows.classes
        kind = self.fold_rows.targets.kind
        return ViewPredictions(images.ids[rows], tuple(views), probs.astype(STORED_AS[kind]), kind)

    def held_out(self, fold: int, places: np.ndarray | slice = slice(None)) -> ViewPredictions:
        """Out-of-fold predictions by the model that was trained last, under the identity view.  places: of the held-out rows."""
        return self.predict(None, self.images, self.fold_rows.held_out(fold)[places], ["identity"])

    def out_of_fold(self, fold: int, trained: Trained) -> ViewPredictions:
        """Out-of-fold predictions of the model that `train` has just trained; those of its last score if still valid."""
        if trained.selected.epoch not in self._scored:
            self._scored = {trained.selected.epoch: self.held_out(fold)}
        return self._scored[trained.selected.epoch]

    def score_of(self, probs: ViewPredictions, fold: int) -> float:
        """The competition's metric of predictions of the held-out rows, under the identity view."""
        targets = self.fold_rows.targets_of(self.fold_rows.held_out(fold))
        return self.metric.display(self.metric.evaluate(targets, probs.view("identity")))

    def _score_held_out(self, epoch: int, fold: int, is_last: bool) -> Scores:
        """The competition's metric and the mean loss of held-out rows after an epoch, for the curves of the report.

        At most CURVE_ROWS of the rows, the same ones after every epoch; after the last one all are predicted, and their predictions kept.
        The mean loss is that of plain targets: log loss, or the squared error in units of the targets' variance.
        """
        rows = self.fold_rows.held_out(fold)
        shown = np.sort(np.random.default_rng(0).permutation(len(rows))[:CURVE_ROWS])
        predictions = self.held_out(fold, slice(None) if is_last else shown)
        if is_last:
            self._scored = {epoch: predictions}
        output = predictions.view("identity")[shown] if is_last else predictions.view("identity")
        targets = self.fold_rows.targets_of(rows[shown])
        if self.fold_rows.targets.kind == "regression":
            unit = deviation(self.fold_rows.targets_of(self.fold_rows.usable(fold)))
            loss = float(np.mean(((output[:, 0] - targets) / unit) ** 2))
        else:
            metric = METRICS["log_loss" if self.fold_rows.targets.kind == "single" else "multilabel_log_loss"]
            loss = metric.display(metric.evaluate(targets, output))
        return {"held_out": self.metric.display(self.metric.evaluate(targets, output)), "held_out_loss": loss}


def save_fold_model(
    trainer: Trainer, fold: int, trained: Trained, folder: Path
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
    return files, result if selected.inner is None else result | {"inner": selected.inner}
