"""Training after a probe does not end below the solved last layer: photos of Oxford 102 and the ImageNet weights of MobileNet."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import network_trainer
from data_fixtures import real_data  # noqa: F401
from PIL import Image

from competition.config.params_file import load_params
from competition.input_pipeline.labelled_images import Images
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows

RECIPE = Path(__file__).parents[2] / "recipes" / "own-images.yaml"
SIZE = 128


def drawn_photos(archive: Path, per_class: int, classes: int) -> Images:
    """`per_class` photos of the largest classes in fold 1, up to 1,000 others in fold 0. Of 4 classes each is a quarter of the 102."""
    with zipfile.ZipFile(archive) as opened:
        table = pd.read_csv(opened.open("train.csv"), dtype={"id": str})
        labels = pd.factorize(table["label"], sort=True)[0]
        labels = labels % classes if classes == 4 else labels
        largest = np.argsort(-np.bincount(labels), kind="stable")[:classes]
        random, rows, folds = np.random.default_rng(0), [], []
        for label in largest:
            mine = random.permutation(np.flatnonzero(labels == label))[: per_class + 1_000 // classes]
            rows += mine.tolist()
            folds += [1] * per_class + [0] * (len(mine) - per_class)
        names = [f"train/{table['id'][row]}.jpg" for row in rows]
        photos = [Image.open(io.BytesIO(opened.read(name))).convert("RGB").resize((SIZE, SIZE)) for name in names]
    numbers = np.full(labels.max() + 1, -1)
    numbers[largest] = np.arange(classes)
    ids = np.array([str(number) for number in range(len(rows))])
    return Images(ids, np.stack(photos), numbers[labels[rows]], np.array(folds), np.ones(len(rows), bool))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("per_class", "classes"), [(4, 102), (50, 20), (500, 4)])
def test_one_two_and_six_epochs_end_no_worse_than_the_solved_head(real_data, per_class, classes) -> None:  # noqa: F811
    images = drawn_photos(real_data / "flowers102_128.zip", per_class, classes)
    weights = str(real_data / "weights" / "mobilenet_1.0_224_notop.weights.h5")
    params = load_params(RECIPE)
    member = replace(params.members["linear"], head=None, image_size=128, weights=weights)
    trainer = network_trainer(FoldRows(member, images, classes), "accuracy", open_device(params.device), 64)
    held_out = np.flatnonzero(images.folds == 0)

    def is_right() -> np.ndarray:
        return trainer.held_out(0).probs[:, 0].argmax(1) == images.labels[held_out]

    trainer.engine.load_weights(trainer._initial_weights(trainer.fold_rows.plan(0, member.train)))
    head = is_right()
    for epochs in (1, 2, 6):
        trainer.train_to_end(0, replace(member.train, epochs=epochs), score_epochs=False)
        change = is_right().astype(float) - head
        error = change.std() / len(change) ** 0.5
        assert change.mean() > -2 * error, f"{epochs} epochs: {head.mean():.3f} {change.mean():+.3f} +- {error:.3f}"
        print(f"{per_class} rows, {epochs} epochs: {head.mean():.4f} {change.mean():+.4f} +- {error:.4f}")
