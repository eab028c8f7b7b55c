"""Prediction on TensorFlow: programs of views, and the network, which may be frozen for one CPU."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from competition.ensemble.metrics import TargetKind
from competition.training.engine import View, apply_views, output_of_logits

# Image-views x pixels from which the weights of a network are frozen to constants on a CPU. At 128 pixels that pays from 600 to
# 850 image-views for MobileNetV2, 2,500 for ResNet50 and 3,100 for EfficientNetV2B0 (benchmarks/prediction.py); in between,
# either choice costs a second per fold model. Not measured at run time: which program predicts must not depend on how busy a
# machine is.
FREEZE_FROM = 1500 * 128**2


class Predictor:
    """The compiled programs by which one model predicts under a strategy.

    frozen: the network with the weights it had when it was frozen, as constants; None: the current weights are used.
    """

    def __init__(
        self, model: keras.Model, strategy: Any, predict_batch: int, target: TargetKind, use_xla: bool
    ) -> None:
        self._model, self._strategy, self._predict_batch, self._target = model, strategy, predict_batch, target
        self.network = tf.function(self.probabilities, autograph=False, jit_compile=use_xla or None)
        self.frozen: Callable[[Any], Any] | None = None
        self._view_programs: dict[tuple[View, ...], Any] = {}

    def freeze(self, size: int) -> None:
        """Fold the current weights into the network on (B, size, size, 3) float32 images, as constants."""
        shape = (self._predict_batch, size, size, 3)
        traced = self.network.get_concrete_function(tf.TensorSpec(shape, tf.float32))
        program = convert_variables_to_constants_v2(traced)
        self.frozen = lambda images: program(images)[0]

    def view_seconds(self, view: View, images: np.ndarray) -> float:
        """See Engine."""
        distributed, transform = self._distribute_images(images), self._view_program((view,))
        tf.test.experimental.sync_devices()
        started = time.perf_counter()
        transform(args=(distributed,))
        tf.test.experimental.sync_devices()
        return time.perf_counter() - started

    def _distribute_images(self, images: np.ndarray) -> Any:
        """Give each replica an equal share of (B, H, W, 3) images."""
        replicas = self._strategy.num_replicas_in_sync
        if replicas == 1:
            return tf.constant(images)
        share = len(images) // replicas
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(images[context.replica_id_in_sync_group * share :][:share])
        )

    def _view_program(self, views: tuple[View, ...]) -> Any:
        """One program that transforms a distributed batch by every view; V outputs."""
        if views not in self._view_programs:
            program = partial(self._strategy.run, apply_views(views))
            self._view_programs[views] = tf.function(program, autograph=False)
        return self._view_programs[views]

    def predict_views(self, views: tuple[View, ...], images: np.ndarray) -> Any:
        """(B, V, C) probabilities of (B, H, W, 3) uint8 images, which a GPU may still be computing."""
        inputs = self._view_program(views)(args=(self._distribute_images(images),))
        return tf.stack([(self.frozen or self.network)(x) for x in inputs], axis=1)

    def probabilities(self, images: Any) -> tf.Tensor:
        """(B, C) probabilities of a distributed batch of the network's input: what `network` compiles."""

        def outputs(local: tf.Tensor) -> tf.Tensor:
            return output_of_logits(self._model(local, training=False), self._target)

        return self._strategy.gather(self._strategy.run(outputs, (images,)), axis=0)
