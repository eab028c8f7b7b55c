"""The files of a trained fold model: weights.npz, history.csv and oof.npz."""

import csv
from dataclasses import asdict, fields
from pathlib import Path

from competition.config.faults import fault_point
from competition.config.params import ExcludedFolds
from competition.files.manifest import atomic_write
from competition.training.checkpoint import save_arrays
from competition.training.loop import Epoch, Trained
from competition.training.scorer import FoldScorer


def save_fold_model(
    trainer: FoldScorer, fold: ExcludedFolds, trained: Trained, folder: Path
) -> tuple[list[Path], dict[str, object]]:
    """Write the model that the trainer has just trained. Returns its files, and its scores and epochs for the manifest."""
    files = [folder / name for name in ("weights.npz", "history.csv", "oof.npz")]
    fault_point("fold.before_weights", files[0])
    save_arrays(files[0], trainer.weights())
    with atomic_write(files[1]) as temporary, temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Epoch)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(epoch) for epoch in trained.history)
    fault_point("fold.before_predictions", files[2])
    trainer.out_of_fold(fold, trained).save(files[2])
    selected, last = trained.selected, trained.history[-1]
    result = {"held_out": trainer.selected_score(fold, trained), "metric": trainer.metric.name}
    result |= {"epoch": selected.epoch, "epochs": last.epoch, "loss": last.loss}
    result["scoring_seconds"] = round(trained.scoring_seconds, 3)
    return files, result if selected.inner is None else result | {"inner": selected.inner}
