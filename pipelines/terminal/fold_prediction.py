"""Predict by one fold model: its held-out rows and the test rows, under every view."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from pipelines.terminal.runner import Computed

if TYPE_CHECKING:
    from competition.images.labelled_images import Images
    from competition.training.trainer import Trainer


def measure_views(trainer: "Trainer", views: Sequence[str]) -> dict[str, float]:
    """View -> seconds of its transform of one batch. Compiles the programs of prediction, whose time is then in no cost."""
    from competition.training.view_cost import transform_seconds

    some_rows = np.arange(min(trainer.engine.predict_batch, len(trainer.images.ids)))
    trainer.predict(None, trainer.images, some_rows, views)
    return transform_seconds(trainer.engine, views, trainer.member.image_size)


def predict_fold(
    trainer: "Trainer", test: "Images", model: Path, folder: Path, fold: int, transforms: Mapping[str, float]
) -> Computed:
    """Predict the held-out rows and the test rows under every view in `transforms`, and write them to `folder`.

    model: folder of the fold model.  transforms: result of measure_views().
    """
    from competition.training.checkpoint import load_arrays
    from competition.training.view_cost import seconds_per_1000

    weights, views, train = load_arrays(model / "weights.npz"), tuple(transforms), trainer.images
    held_out_rows, test_rows = np.flatnonzero(train.folds == fold), np.arange(len(test.ids))
    files = [folder / "oof.npz", folder / "test.npz"]
    started = perf_counter()
    predictions = [trainer.predict(weights, train, held_out_rows, views), trainer.predict(None, test, test_rows, views)]
    seconds = perf_counter() - started
    for file, content in zip(files, predictions, strict=True):
        content.save(file)
    batch = trainer.engine.predict_batch
    padded = sum(-(-len(rows) // batch) * batch for rows in (held_out_rows, test_rows))
    costs = seconds_per_1000(seconds, padded, transforms, batch)
    return files, {"oof_rows": len(held_out_rows), "test_rows": len(test_rows), "seconds_per_1000": costs}
