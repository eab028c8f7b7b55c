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
from competition.config.plugins import Plugins, active, plugin_named

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


def _shift(images: Images, down: int, right: int, pixels: int | None = None) -> Images:
    """Shift the image by `pixels`, repeating the border; None = SHIFT of the side."""
    for axis, direction in ((1, down), (2, right)):
        if direction:
            side = images.shape[axis]
            step = direction * (pixels or max(1, round(side * SHIFT)))
            images = _take(images, np.clip(np.arange(side) - step, 0, side - 1), axis)
    return images


def _crop(images: Images, down: float, right: float) -> Images:
    """Crop CROP of each side and resize back.  down, right: position of the crop, 0..1 of the margin."""
    height, width = images.shape[1:3]
    h, w = round(height * CROP), round(width * CROP)
    top, left = round((height - h) * down), round((width - w) * right)
    return _resize(images[:, top : top + h, left : left + w], height, width)


def _scale(images: Images, percent: int) -> Images:
    """Zoom by `percent`.  > 100: centre crop, enlarged.  < 100: the image reduced, its border repeated."""
    height, width = images.shape[1:3]
    if percent >= 100:
        h, w = round(height * 100 / percent), round(width * 100 / percent)
        top, left = (height - h) // 2, (width - w) // 2
        return _resize(images[:, top : top + h, left : left + w], height, width)
    h, w = max(1, round(height * percent / 100)), max(1, round(width * percent / 100))
    small = _resize(images, h, w)
    small = _take(small, np.clip(np.arange(height) - (height - h) // 2, 0, h - 1), axis=1)
    return _take(small, np.clip(np.arange(width) - (width - w) // 2, 0, w - 1), axis=2)


def _brightness(images: Images, percent: int) -> Images:
    """Add `percent` of the range 0..255 to every value and clip."""
    from keras import ops

    return ops.clip(images + 255.0 * percent / 100, 0.0, 255.0)


def _in_turn(images: Images, views: Sequence[View]) -> Images:
    """The views, one on the result of the other."""
    for view in views:
        images = view(images)
    return images


_flip_lr, _flip_ud = partial(_flip, axis=2), partial(_flip, axis=1)
VIEWS: dict[str, View] = {
    "identity": lambda images: images,  # returns its input: bit-identical to prediction without TTA
    "flip_lr": _flip_lr,
    "flip_ud": _flip_ud,
    "rot90": partial(_in_turn, views=(_transpose, _flip_ud)),  # counter-clockwise
    "rot180": partial(_in_turn, views=(_flip_lr, _flip_ud)),
    "rot270": partial(_in_turn, views=(_flip_ud, _transpose)),
    "transpose": _transpose,
    "anti_transpose": partial(_in_turn, views=(_flip_lr, _flip_ud, _transpose)),
    "crop_center": partial(_crop, down=0.5, right=0.5),
    "crop_top_left": partial(_crop, down=0, right=0),
    "crop_top_right": partial(_crop, down=0, right=1),
    "crop_bottom_left": partial(_crop, down=1, right=0),
    "crop_bottom_right": partial(_crop, down=1, right=1),
    "shift_up": partial(_shift, down=-1, right=0),
    "shift_down": partial(_shift, down=1, right=0),
    "shift_left": partial(_shift, down=0, right=-1),
    "shift_right": partial(_shift, down=0, right=1),
}

NUMBERED: dict[str, Callable[[int], View]] = {
    "shift_up": lambda n: partial(_shift, down=-1, right=0, pixels=n),
    "shift_down": lambda n: partial(_shift, down=1, right=0, pixels=n),
    "shift_left": lambda n: partial(_shift, down=0, right=-1, pixels=n),
    "shift_right": lambda n: partial(_shift, down=0, right=1, pixels=n),
    "scale": lambda n: partial(_scale, percent=n),  # of the side: 90, 110
    "brighter": lambda n: partial(_brightness, percent=n),  # of the range
    "darker": lambda n: partial(_brightness, percent=-n),
}

_FIVE = ("crop_center", "crop_top_left", "crop_top_right", "crop_bottom_left", "crop_bottom_right")
GROUPS: dict[str, tuple[str, ...]] = {
    "five_crops": _FIVE,
    "ten_crops": (*_FIVE, *(f"flip_lr+{crop}" for crop in _FIVE)),
    "dihedral": ("identity", "flip_lr", "flip_ud", "rot90", "rot180", "rot270", "transpose", "anti_transpose"),
    "shifts": ("shift_up", "shift_down", "shift_left", "shift_right"),
}


def expand_views(names: Sequence[str]) -> tuple[str, ...]:
    """Replace group names by their views, without duplicates, in order. Raises UserError for unknown names."""
    names = tuple(dict.fromkeys(v for name in names for v in GROUPS.get(name, (name,))))
    get_views(names)
    return names


def get_views(names: Sequence[str]) -> tuple[View, ...]:
    """The functions of these views. The same name gives the same function object, so that callers can cache compilations."""
    return tuple(_view(name, active()) for name in names)


@cache
def _view(name: str, plugins: Plugins) -> View:
    """plugins: the active ones; other plugins may have other views of the same name."""
    if "+" in name:
        return partial(_in_turn, views=tuple(_view(part, plugins) for part in name.split("+")))
    function = plugin_named("VIEWS", name, {*VIEWS, *GROUPS})
    if function is not None:
        return partial(_checked, name=name, function=function, plugins=plugins)
    if name in VIEWS:
        return VIEWS[name]
    family, _, number = name.rpartition("_")
    if family in NUMBERED and number.isascii() and number.isdigit() and int(number) > 0:
        return NUMBERED[family](int(number))
    if name in GROUPS:
        raise UserError(f"'{name}' is a group of views and cannot be combined with '+'; name one of its views")
    names = [*plugins.views, *VIEWS, *(f"{family}_10" for family in NUMBERED), *GROUPS]
    raise UserError(f"view '{name}' is not known{did_you_mean(name, names)}")


def _checked(images: Images, name: str, function: View, plugins: Plugins) -> Images:
    """Apply the view of a plugins file, which must keep shape and dtype."""
    what = f"VIEWS[{name!r}]"
    result = plugins.call(what, function, images)
    expected, received = (
        f"{tuple(x.shape)} {getattr(x.dtype, 'name', x.dtype)}" if hasattr(x, "dtype") else type(x).__name__
        for x in (images, result)
    )
    if expected != received:
        raise UserError(
            plugins.problem(what, f"expected images of the same shape and dtype, {expected}; received {received}")
        )
    return result


def _take(images: Images, indices: np.ndarray, axis: int) -> Images:
    from keras import ops

    return ops.take(images, indices.astype(np.int32), axis=axis)


def _resize(images: Images, height: int, width: int) -> Images:
    from keras import ops

    # Without antialiasing (ScaleAndTranslate has no XLA kernel); views change the side by an eighth or so.
    return ops.image.resize(
        images, (height, width), interpolation="bilinear", antialias=False, data_format="channels_last"
    )
