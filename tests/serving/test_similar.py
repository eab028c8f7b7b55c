"""The most similar training images are those whose features in the network are nearest."""

import io
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from builders import pixels_of
from PIL import Image

from competition.prepare.decoding import encode_png
from competition.serving.similar import TrainingImages

LABELS = np.arange(30) % 3
PIXELS = pixels_of(LABELS, seed=1, size=32)
ROWS = pd.DataFrame({"id": [f"i{n}" for n in range(30)], "label": LABELS, "problem": [""] * 29 + ["damaged"]})


class MeanColour:
    """An engine whose features are the direction of the mean colour of an image of 16 pixels: blind to its layout."""

    bundle = SimpleNamespace(classes=("red", "green", "blue"), features_size=16, fit="squash")

    def features(self, pixels: np.ndarray) -> np.ndarray:
        assert pixels.shape[1:] == (16, 16, 3) and pixels.dtype == np.uint8
        means = pixels.mean((1, 2)).astype(np.float32)
        return means / np.linalg.norm(means, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def images() -> TrainingImages:
    images = TrainingImages(ROWS, PIXELS, MeanColour())
    while images.add_features():
        pass
    return images


def test_the_nearest_features_count_and_not_the_layout(images: TrainingImages) -> None:
    shuffled = np.random.default_rng(0).permutation(PIXELS[7].reshape(-1, 3)).reshape(PIXELS[7].shape)
    nearest = images.most_similar(encode_png(shuffled), 5)
    assert nearest[0].class_name == "green" and nearest[0].similarity == pytest.approx(1, abs=1e-3)
    similarities = [each.similarity for each in nearest]
    assert similarities == sorted(similarities, reverse=True) and {each.class_name for each in nearest} == {"green"}
    assert images.most_similar(encode_png(PIXELS[7]), 1)[0].id == "i7"


def test_an_unreadable_row_is_neither_found_nor_shown(images: TrainingImages) -> None:
    assert "i29" not in [each.id for each in images.most_similar(encode_png(PIXELS[29]), 30)]
    assert images.picture(29) is None and images.picture(30) is None
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(images.picture(3)))), PIXELS[3])
