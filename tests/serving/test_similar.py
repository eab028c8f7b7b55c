"""The most similar training images are found by what the eye sees first: layout, edges and colours."""

import io

import numpy as np
import pandas as pd
import pytest
from builders import pixels_of
from PIL import Image

from competition.prepare.decoding import BadImage
from competition.serving.similar import TrainingImages

LABELS = np.arange(30) % 3
PIXELS = pixels_of(LABELS, seed=1, size=32)
ROWS = pd.DataFrame({"id": [f"i{n}" for n in range(30)], "label": LABELS, "problem": [""] * 29 + ["damaged"]})


@pytest.fixture(scope="module")
def images() -> TrainingImages:
    return TrainingImages(ROWS, ("red", "green", "blue"), PIXELS, "squash")


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_a_training_image_is_most_similar_to_itself_and_then_to_its_class(images: TrainingImages) -> None:
    nearest = images.most_similar(png(PIXELS[7]), 5)
    assert (nearest[0].id, nearest[0].row, nearest[0].distance) == ("i7", 7, pytest.approx(0, abs=1e-6))
    assert [each.class_name for each in nearest] == ["green"] * 5
    assert [each.distance for each in nearest] == sorted(each.distance for each in nearest)


def test_an_unreadable_row_is_neither_found_nor_shown(images: TrainingImages) -> None:
    assert "i29" not in [each.id for each in images.most_similar(png(PIXELS[29]), 30)]
    assert images.picture(29) is None and images.picture(30) is None
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(images.picture(3)))), PIXELS[3])


def test_what_is_no_image_is_an_error(images: TrainingImages) -> None:
    with pytest.raises(BadImage):
        images.most_similar(b"text", 3)
