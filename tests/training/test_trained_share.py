"""train.trained_share: the last layers are trained, and the first ones keep their weights."""

import numpy as np
from builders import CLASSES, member, params, pixels_of

from competition.images.labelled_images import Images
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows
from competition.training.trainer import Trainer


def test_the_first_layers_keep_their_weights() -> None:
    labels = np.arange(60) % CLASSES
    ids = np.array([str(number) for number in range(len(labels))])
    images = Images(ids, pixels_of(labels), labels, np.arange(60) // CLASSES % 2, np.ones(60, bool))
    half = member(trained_share=0.5, epochs=2, learning_rate=0.01)
    trainer = Trainer(FoldRows(half, images, CLASSES), "accuracy", open_device(params().device), 8)
    before = {name: np.array(value) for name, value in trainer.weights().items()}
    kept = {name for name, value in before.items() if name.endswith(("kernel", "gamma"))}
    trainer.train_to_end(0, half.train)
    changed = {name for name, value in trainer.weights().items() if (np.array(value) != before[name]).any()}
    first, last = min(kept), max(kept)  # names begin with the position of the layer
    assert first not in changed and last in changed and "logits" in last
