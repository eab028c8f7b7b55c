"""New images as a user gives them: paths, bytes, arrays; and what is refused."""

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.prepare.decoding import decode, encode_png
from competition.serving.new_images import read_new_images

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)


def test_grey_and_transparent_arrays_become_colour_images_and_an_array_of_images_is_a_list() -> None:
    grey = PIXELS[:, :, 0]
    clear = np.dstack([PIXELS, np.zeros((9, 7), np.uint8)])  # wholly transparent: white
    first, second = (decode(data, 9, "squash") for data in read_new_images([grey, clear]).data)
    assert np.array_equal(first[..., 0], first[..., 2]) and (second == 255).all()
    assert len(read_new_images(np.stack([PIXELS, PIXELS])).data) == 2


def test_every_image_that_cannot_be_read_is_counted_and_named(tmp_path) -> None:
    (tmp_path / "text.jpg").write_text("<html>")
    (tmp_path / "cut.png").write_bytes(encode_png(PIXELS)[:-30])
    with pytest.raises(UserError, match=r"3 of 4 images cannot be read: .*text.jpg .it is a web page.*No such file"):
        read_new_images([tmp_path / "text.jpg", tmp_path / "none.jpg", PIXELS, tmp_path / "cut.png"])


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (PIXELS, "one image was found where a list of images was expected"),
        ([PIXELS / 255], r"shape \(9, 7, 3\) and type float64 was found; expected uint8 pixels from 0 to 255"),
        ([PIXELS[:, :, :2]], r"shape \(9, 7, 2\)"),
    ],
)
def test_what_is_no_list_of_images_is_refused(images, says) -> None:
    with pytest.raises(UserError, match=says):
        read_new_images(images)
