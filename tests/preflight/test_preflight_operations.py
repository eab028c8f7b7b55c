"""Operations that XLA supports on the TensorFlow backend. The registry of TPU operations agrees."""

import pytest
import tensorflow as tf

from competition.images.mixup import COUNT
from competition.preflight.answers import REMEDIES
from competition.preflight.lowering import CannotCompile, lowered
from competition.training.device_augmentation import augmented

IMAGES = [((2, 16, 16, 3), "float32")]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Set a seed: another test of this process may have enabled deterministic operations, which require one."""
    tf.random.set_seed(1)


@pytest.mark.parametrize(
    ("function", "specs", "operation"),
    [
        (lambda: tf.io.decode_jpeg(tf.constant(b"bytes"), channels=3), [], "DecodeJpeg"),
        (lambda x: tf.py_function(lambda y: y, [x], tf.float32), IMAGES, "EagerPyFunc"),
        (lambda x: tf.image.resize(x, (8, 8), antialias=True), IMAGES, "ScaleAndTranslate"),
    ],
)
def test_an_unsupported_operation_is_an_error_with_its_name(function, specs, operation) -> None:
    with pytest.raises(CannotCompile) as unsupported:
        lowered(function, specs)
    assert operation in unsupported.value.result["operations"] and operation in REMEDIES


def test_the_augmentation_inside_the_step_is_lowered() -> None:
    specs = [((4, 16, 16, 3), "uint8"), ((4, COUNT), "float32"), ((4, 3), "float32")]
    assert len(lowered(lambda pixels, numbers, targets: augmented((pixels, numbers), targets), specs)) > 100
