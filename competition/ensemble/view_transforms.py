"""Test-time views: deterministic transforms of a batch of images that keep its shape.

(B, H, W, 3) float in 0..255 -> the same. Written with keras.ops on static shapes and with gathers in place of affine
transforms, so that each compiles under XLA on TensorFlow and JAX alike (XLA on TPU has neither
ImageProjectiveTransform nor antialiased resizing). A view has a name; `+` composes, from left to right:

    flip_lr        flip_lr+shift_up_4        flip_lr+crop_top_left        scale_110        brighter_10

Which views are valid depends on the competition: a flipped digit is another digit, a flipped leaf is a leaf.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from competition.config.errors import UserError, did_you_mean
from competition.config.plugins import Plugins

Images = Any  # a batch (B, H, W, 3) of the caller's library: NumPy, TensorFlow or JAX
View = Callable[[Images], Images]  # (B, H, W, 3) -> (B, H, W, 3)

CROP = 7 / 8  # side of a crop as a share of the image's side (224 of 256, the classic ten crops)
SHIFT = 1 / 16  # of the side, if no number of pixels is given


def _flip(images: Images, axis: int) -> Images:
    """Mirror the image.  axis: 1, upside down; 2, left and right."""
    from keras import ops

    return ops.flip(images, axis=axis)


def _transpose(images: Images) -> Images:
    from keras import ops

    if images.shape[1] != images.shape[2]:
        raise UserError(f"a transposed or quarter-turned view needs square images, found {images.shape[1:3]}")
    return ops.transpose(images, (0, 2, 1, 3))


def _shift(images: Images, number: int | None = None, *, down: int, right: int) -> Images:
    """Shift the image by `number` pixels, repeating the border; None = SHIFT of the side."""
    for axis, direction in ((1, down), (2, right)):
        if direction:
            side = images.shape[axis]
            step = direction * (number or max(1, round(side * SHIFT)))
            images = _take(images, np.clip(np.arange(side) - step, 0, side - 1), axis)
    return images


def _crop(images: Images, down: float, right: float) -> Images:
    """Crop CROP of each side and resize back.  down, right: position of the crop, 0..1 of the margin."""
    height, width = images.shape[1:3]
    h, w = round(height * CROP), round(width * CROP)
    top, left = round((height - h) * down), round((width - w) * right)
    return _resize(images[:, top : top + h, left : left + w], height, width)


def _scale(images: Images, number: int) -> Images:
    """Zoom to `number` percent of the side.  > 100: centre crop, enlarged.  < 100: the image reduced, its border repeated."""
    height, width = images.shape[1:3]
    if number >= 100:
        h, w = round(height * 100 / number), round(width * 100 / number)
        top, left = (height - h) // 2, (width - w) // 2
        return _resize(images[:, top : top + h, left : left + w], height, width)
    h, w = max(1, round(height * number / 100)), max(1, round(width * number / 100))
    small = _resize(images, h, w)
    small = _take(small, np.clip(np.arange(height) - (height - h) // 2, 0, h - 1), axis=1)
    return _take(small, np.clip(np.arange(width) - (width - w) // 2, 0, w - 1), axis=2)


def _brightness(images: Images, number: int, sign: int = 1) -> Images:
    """Add `number` percent of the range 0..255 to every value, or subtract it, and clip."""
    from keras import ops

    return ops.clip(images + 255.0 * sign * number / 100, 0.0, 255.0)


def _in_turn(images: Images, views: Sequence[View]) -> Images:
    """The views, one on the result of the other."""
    for view in views:
        images = view(images)
    return images


_flip_lr, _flip_ud = partial(_flip, axis=2), partial(_flip, axis=1)
CROPS = {  # name -> position of the crop, down and right
    "crop_center": (0.5, 0.5),
    "crop_top_left": (0, 0),
    "crop_top_right": (0, 1),
    "crop_bottom_left": (1, 0),
    "crop_bottom_right": (1, 1),
}
SHIFTS = {"shift_up": (-1, 0), "shift_down": (1, 0), "shift_left": (0, -1), "shift_right": (0, 1)}  # down, right
VIEWS: dict[str, View] = {
    "identity": lambda images: images,  # returns its input: bit-identical to prediction without TTA
    "flip_lr": _flip_lr,
    "flip_ud": _flip_ud,
    "rot90": partial(_in_turn, views=(_transpose, _flip_ud)),  # counter-clockwise
    "rot180": partial(_in_turn, views=(_flip_lr, _flip_ud)),
    "rot270": partial(_in_turn, views=(_flip_ud, _transpose)),
    "transpose": _transpose,
    "anti_transpose": partial(_in_turn, views=(_flip_lr, _flip_ud, _transpose)),
    **{name: partial(_crop, down=down, right=right) for name, (down, right) in CROPS.items()},
    **{name: partial(_shift, down=down, right=right) for name, (down, right) in SHIFTS.items()},
}
# Name without its number -> a function of images and the number.
NUMBERED: dict[str, Callable[..., Images]] = {
    **{name: partial(_shift, down=down, right=right) for name, (down, right) in SHIFTS.items()},
    "scale": _scale,
    "brighter": _brightness,
    "darker": partial(_brightness, sign=-1),
}
GROUPS: dict[str, tuple[str, ...]] = {
    "five_crops": tuple(CROPS),
    "ten_crops": (*CROPS, *(f"flip_lr+{crop}" for crop in CROPS)),
    "dihedral": ("identity", "flip_lr", "flip_ud", "rot90", "rot180", "rot270", "transpose", "anti_transpose"),
    "shifts": tuple(SHIFTS),
}


def expand_views(names: Sequence[str], plugins: Plugins) -> tuple[str, ...]:
    """Replace group names by their views, without duplicates, in order. Raises UserError for unknown names."""
    names = tuple(dict.fromkeys(v for name in names for v in GROUPS.get(name, (name,))))
    get_views(names, plugins)
    return names


def get_views(names: Sequence[str], plugins: Plugins) -> tuple[View, ...]:
    """The functions of these views. The same name gives the same function object, so that callers can cache compilations."""
    return tuple(_view(name, plugins) for name in names)


@cache
def _view(name: str, plugins: Plugins) -> View:
    if "+" in name:
        return partial(_in_turn, views=tuple(_view(part, plugins) for part in name.split("+")))
    function = plugins.named("VIEWS", name, {*VIEWS, *GROUPS})
    if function is not None:
        return partial(plugins.call, f"VIEWS[{name!r}]", function)
    if name in VIEWS:
        return VIEWS[name]
    family, _, number = name.rpartition("_")
    if family in NUMBERED and number.isascii() and number.isdigit() and int(number) > 0:
        return partial(NUMBERED[family], number=int(number))
    names = [*plugins.views, *VIEWS, *(f"{family}_10" for family in NUMBERED), *GROUPS]
    raise UserError(f"view '{name}' is not known{did_you_mean(name, names)}")


def _take(images: Images, indices: np.ndarray, axis: int) -> Images:
    from keras import ops

    return ops.take(images, indices.astype(np.int32), axis=axis)


def _resize(images: Images, height: int, width: int) -> Images:
    from keras import ops

    # Without antialiasing (ScaleAndTranslate has no XLA kernel); views change the side by an eighth or so.
    return ops.image.resize(
        images, (height, width), interpolation="bilinear", antialias=False, data_format="channels_last"
    )
