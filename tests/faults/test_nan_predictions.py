"""A model whose last update overflowed gives no result."""

import numpy as np
import pytest
from builders import CLASSES, member, params, pixels_of

from competition.images.labelled_images import Images
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows
from competition.training.loop import Diverged
from competition.training.trainer import Trainer


def test_a_model_that_predicts_nan_after_a_finite_loss_is_no_result() -> None:
    """The loss is computed before an update, so the last update may overflow unseen."""
    labels = np.arange(24) % CLASSES
    ids = np.array([f"i{n}" for n in range(24)])
    images = Images(ids, pixels_of(labels), labels, np.arange(24) // CLASSES % 2, np.ones(24, bool))
    trainer = Trainer(FoldRows(member(batch=12), images, CLASSES), "macro_f1", open_device(params().device), 7)
    overflowed = {name: np.full_like(value, np.nan) for name, value in trainer.engine.weights().items()}
    trainer.engine.load_weights(overflowed)
    with pytest.raises(
        Diverged, match=r"predicts NaN or infinity for 12 of 12 held-out rows; lower train.learning_rate"
    ):
        trainer.held_out(0)
