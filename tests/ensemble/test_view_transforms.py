"""Each view against NumPy, and against XLA."""

import numpy as np
import pytest
import tensorflow as tf

from competition.config.errors import UserError
from competition.config.plugins import NO_PLUGINS, Plugins
from competition.ensemble.view_transforms import GROUPS, NUMBERED, VIEWS, expand_views, get_views

ALL = [*VIEWS, *(f"{family}_10" for family in NUMBERED), "scale_90", "shift_up_3", "flip_lr+crop_top_left"]


def images(side=16, batch=2, seed=0):
    return np.random.default_rng(seed).uniform(0, 255, (batch, side, side, 3)).astype(np.float32)


def view_output(name, pixels):
    return np.asarray(get_views([name], NO_PLUGINS)[0](pixels))


def test_identity_returns_its_input_unchanged_and_the_same_name_gives_the_same_function():
    pixels = images()
    assert get_views(["identity"], NO_PLUGINS)[0](pixels) is pixels
    assert len({get_views(["flip_lr+crop_center", "scale_90"], Plugins()) for _ in range(2)}) == 1
    with pytest.raises(UserError, match="needs square images"):
        view_output("rot90", np.zeros((1, 8, 16, 3), np.float32))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flip_lr", lambda x: x[:, :, ::-1]),
        ("flip_ud", lambda x: x[:, ::-1]),
        ("rot90", lambda x: np.rot90(x, 1, (1, 2))),
        ("rot270", lambda x: np.rot90(x, 3, (1, 2))),
        ("transpose", lambda x: x.transpose(0, 2, 1, 3)),
        ("anti_transpose", lambda x: np.rot90(x, 2, (1, 2)).transpose(0, 2, 1, 3)),
        ("shift_down_3", lambda x: np.pad(x, ((0, 0), (3, 0), (0, 0), (0, 0)), "edge")[:, :-3]),
        ("shift_up_3", lambda x: np.pad(x, ((0, 0), (0, 3), (0, 0), (0, 0)), "edge")[:, 3:]),
        ("shift_right_3", lambda x: np.pad(x, ((0, 0), (0, 0), (3, 0), (0, 0)), "edge")[:, :, :-3]),
        ("shift_left", lambda x: np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0)), "edge")[:, :, 1:]),  # a sixteenth of 16
        ("brighter_10", lambda x: np.clip(x + 25.5, 0, 255)),
        ("darker_10", lambda x: np.clip(x - 25.5, 0, 255)),
        ("flip_lr+shift_up_2", lambda x: np.pad(x[:, :, ::-1], ((0, 0), (0, 2), (0, 0), (0, 0)), "edge")[:, 2:]),
    ],
)
def test_each_view_equals_its_numpy_definition(name, expected):
    assert np.array_equal(view_output(name, images()), expected(images()))


def test_every_view_is_deterministic_keeps_the_shape_and_the_range_and_compiles_under_xla():
    views, pixels = get_views(ALL, NO_PLUGINS), images()
    compiled = tf.function(lambda batch: [view(batch) for view in views], jit_compile=True)(tf.constant(pixels))
    for name, under_xla in zip(ALL, compiled, strict=True):
        output = view_output(name, pixels)
        assert output.shape == pixels.shape and output.dtype == np.float32, name
        assert np.array_equal(output, view_output(name, pixels)), name
        assert output.min() >= 0 and output.max() <= 255.001, name
        assert np.allclose(under_xla, output, atol=1e-2), name


def test_a_group_contains_each_of_its_views_once():
    assert len(expand_views(["ten_crops"], NO_PLUGINS)) == 10
    assert expand_views(["identity", "dihedral"], NO_PLUGINS) == GROUPS["dihedral"]
    pixels = images()
    assert len({view_output(name, pixels).tobytes() for name in GROUPS["dihedral"]}) == 8  # none is a no-op
