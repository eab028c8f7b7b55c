"""New images as a user gives them, what is refused, and the training images that are most similar to one."""

import io
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from builders import pixels_of
from PIL import Image

from competition.config.errors import UserError
from competition.files.image_codec import decode, encode
from competition.serving.new_images import read_new_images
from competition.serving.similar import TrainingImages

PHOTO = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)


def test_grey_and_transparent_arrays_become_colour_images_and_an_array_of_images_is_a_list() -> None:
    grey = PHOTO[:, :, 0]
    clear = np.dstack([PHOTO, np.zeros((9, 7), np.uint8)])  # wholly transparent: white
    first, second = (decode(data, 9, "squash") for data in read_new_images([grey, clear]).data)
    assert np.array_equal(first[..., 0], first[..., 2]) and (second == 255).all()
    assert len(read_new_images(np.stack([PHOTO, PHOTO])).data) == 2


def test_every_image_that_cannot_be_read_is_counted_and_named(tmp_path) -> None:
    (tmp_path / "text.jpg").write_text("<html>")
    (tmp_path / "cut.png").write_bytes(encode(PHOTO, "png")[:-30])
    with pytest.raises(UserError, match=r"3 of 4 images cannot be read: .*text.jpg .it is a web page.*No such file"):
        read_new_images([tmp_path / "text.jpg", tmp_path / "none.jpg", PHOTO, tmp_path / "cut.png"])


def test_what_is_no_list_of_images_is_refused() -> None:
    with pytest.raises(UserError, match="one image was found where a list of images was expected"):
        read_new_images(PHOTO)
    with pytest.raises(UserError, match=r"\(9, 7, 3\) and type float64 was found; expected uint8 pixels from 0 to 255"):
        read_new_images([PHOTO / 255])
    with pytest.raises(UserError, match=r"shape \(9, 7, 2\)"):
        read_new_images([PHOTO[:, :, :2]])


LABELS = np.arange(30) % 3
PIXELS = pixels_of(LABELS, seed=1, size=16)
ROWS = pd.DataFrame({"id": [f"i{n}" for n in range(30)], "label": LABELS, "problem": [""] * 29 + ["damaged"]})


class MeanColour:
    """An engine whose features are the direction of the mean colour of an image of 16 pixels: blind to its layout."""

    bundle = SimpleNamespace(classes=("red", "green", "blue"), features_size=16, fit="squash")

    def features(self, pixels: np.ndarray) -> np.ndarray:
        assert pixels.shape[1:] == (16, 16, 3) and pixels.dtype == np.uint8
        means = pixels.mean((1, 2)).astype(np.float32)
        return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_the_nearest_features_count_and_not_the_layout_and_an_unreadable_row_is_neither_found_nor_shown() -> None:
    images = TrainingImages(ROWS, PIXELS, MeanColour())
    while images.add_features():
        pass
    shuffled = np.random.default_rng(0).permutation(PIXELS[7].reshape(-1, 3)).reshape(PIXELS[7].shape)
    nearest = images.most_similar(encode(shuffled, "png"), 5)
    assert nearest[0]["class_name"] == "green" and nearest[0]["similarity"] == pytest.approx(1, abs=1e-3)
    similarities = [each["similarity"] for each in nearest]
    assert similarities == sorted(similarities, reverse=True) and {each["class_name"] for each in nearest} == {"green"}
    assert images.most_similar(encode(PIXELS[7], "png"), 1)[0]["id"] == "i7"
    assert "i29" not in [each["id"] for each in images.most_similar(encode(PIXELS[29], "png"), 30)]
    assert images.picture(29) is None and images.picture(30) is None
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(images.picture(3)))), PIXELS[3])
