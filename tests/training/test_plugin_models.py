"""The network of a user's builder: what it may be, and the sentence for what it may not be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from small_engines import CLASSES, PARAMS, TRAIN

from competition.config.errors import UserError
from competition.config.plugins import Plugins
from competition.training.engine import layer_groups
from competition.training.model import build


def built_by(builder: Callable[..., object], weights: str = "none") -> keras.Model:
    member = replace(PARAMS.members["cnn"], architecture="mine", image_size=8, weights=weights, train=TRAIN)
    return build(member, CLASSES, plugins=Plugins(models={"mine": builder}))  # type: ignore[dict-item]


def features(image_size, classes, side=0, output="map", activation=None) -> keras.Model:
    """A small network. output: map (h, w, F) | tokens (T, F) | vector (F,) | logits (classes,)."""
    inputs = keras.Input((side or image_size, side or image_size, 3))
    x = keras.layers.Conv2D(5, 3, use_bias=False)(keras.layers.Rescaling(1 / 255)(inputs))
    if output == "tokens":
        x = keras.layers.Reshape((-1, 5))(x)
    elif output != "map":
        x = keras.layers.GlobalAveragePooling2D()(x)
    if output == "logits":
        x = keras.layers.Dense(classes, activation, name="logits")(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize("output", ["map", "tokens", "vector"])
def test_features_of_any_rank_get_the_last_layer(output: str) -> None:
    model = built_by(lambda image_size, classes: features(image_size, classes, output=output))
    assert model.output.shape == (None, CLASSES) and model.get_layer("logits").input.shape == (None, 5)


def test_logits_of_the_builder_are_the_output_and_its_last_layer_the_head() -> None:
    model = built_by(lambda image_size, classes: features(image_size, classes, output="logits"))
    assert [layer.name for layer in model._flatten_layers() if isinstance(layer, keras.layers.Dense)] == ["logits"]
    assert model.get_layer("logits").input.shape == (None, 5) and model.output.dtype == "float32"
    assert [is_head for _, is_head in layer_groups(model)] == [False, True, True]


def test_the_seed_decides_the_initial_weights_and_a_file_replaces_them(tmp_path: Path) -> None:
    def builder(image_size: int, classes: int, alpha: float) -> keras.Model:
        assert alpha == PARAMS.members["cnn"].alpha
        return features(image_size, classes)

    first, second = (built_by(builder).get_weights()[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = features(8, CLASSES)
    other.save_weights(tmp_path / "other.weights.h5")
    loaded = built_by(builder, str(tmp_path / "other.weights.h5")).get_weights()[0]
    np.testing.assert_array_equal(loaded, other.get_weights()[0])
    assert not np.array_equal(loaded, first)
    cnn = replace(PARAMS.members["cnn"], image_size=8, train=TRAIN, weights=str(tmp_path / "other.weights.h5"))
    with pytest.raises(UserError, match=r"cnn with weights '.*other\.weights\.h5': "):  # of another network
        build(cnn, CLASSES)


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (lambda image_size, classes: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda image_size, classes: features(image_size, classes, 0, "logits", "softmax"),
         "its layer 'logits' must be a Dense layer of 3 units without activation"),
        (lambda image_size, classes: 3, r"a keras\.Model with one input and one output was expected; int was found"),
        (lambda image_size, classes: features(image_size, classes, 16), "ValueError: .*shape"),
        (lambda image_size, classes: features(image_size, 7, 0, "logits"), "'logits' must be a Dense layer of 3 units"),
    ],
)  # fmt: skip
def test_a_wrong_network_is_one_sentence(builder, message: str) -> None:
    with pytest.raises(UserError, match=rf"MODELS\['mine'\]: .*{message}"):
        built_by(builder)
