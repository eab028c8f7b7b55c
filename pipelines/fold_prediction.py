"""Predict by one fold model: its held-out rows and the test rows, under every view."""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from pipelines.runner import Computed

if TYPE_CHECKING:
    from competition.data.labelled_images import Images
    from competition.training.trainer import Trainer


def predict_fold(
    trainer: "Trainer", test: "Images", model: Path, folder: Path, fold: int, transforms: Mapping[str, float]
) -> Computed:
    """Predict the held-out rows and the test rows under every view in `transforms`, and write them to `folder`.

    model: folder of the fold model.  transforms: view -> seconds of its transform of one batch.
    """
    from competition.training.checkpoint import load_arrays
    from competition.training.view_cost import seconds_per_1000

    weights, views, train = load_arrays(model / "weights.npz"), tuple(transforms), trainer.images
    held_out_rows, test_rows = np.flatnonzero(train.folds == fold), np.arange(len(test.ids))
    files = [folder / "oof.npz", folder / "test.npz"]
    trainer.predict(weights, train, held_out_rows, views).save(files[0])
    batch = trainer.engine.predict_batch
    started = perf_counter()  # only after the first prediction, for which the program was compiled
    test_predictions = trainer.predict(None, test, test_rows, views)
    if not len(test_rows):  # a competition without test images: time a batch of held-out rows instead
        trainer.predict(None, train, held_out_rows[:batch], views)
    seconds = perf_counter() - started
    test_predictions.save(files[1])
    costs = seconds_per_1000(seconds, -(-max(len(test_rows), 1) // batch) * batch, transforms, batch)
    return files, {"oof_rows": len(held_out_rows), "test_rows": len(test_rows), "seconds_per_1000": costs}
