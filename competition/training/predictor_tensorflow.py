"""Prediction on TensorFlow: programs of views, and the network."""

import time
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from competition.ensemble.metrics import TargetKind
from competition.training.engine import View, apply_views, output_of_logits, view_groups


class Predictor:
    """The compiled programs by which one model predicts under a strategy, with its current weights.

    Constants instead of variables are not worth their compilation per fold model (docs/speed.md).
    """

    def __init__(self, model: keras.Model, strategy: Any, target: TargetKind, use_xla: bool) -> None:
        self._model, self._strategy, self._target = model, strategy, target
        self.network = tf.function(self.probabilities, autograph=False, jit_compile=use_xla or None)
        self._view_programs: dict[tuple[View, ...], Any] = {}

    def view_seconds(self, view: View, images: np.ndarray) -> float:
        """See Engine."""
        distributed, transform = self._distribute_images(images), self._view_program((view,))
        tf.test.experimental.sync_devices()
        started = time.perf_counter()
        transform(args=(distributed,))
        tf.test.experimental.sync_devices()
        return time.perf_counter() - started

    def _distribute_images(self, images: np.ndarray) -> Any:
        """Give each replica an equal share of (B, H, W, 3) images. A tensor, or one value per replica."""
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

    def predict_views(self, views: tuple[View, ...], images: np.ndarray) -> tf.Tensor:
        """(B, V, C) probabilities of (B, H, W, 3) uint8 images, which a GPU may still be computing."""
        distributed = self._distribute_images(images)
        probs: list[tf.Tensor] = []
        for group in view_groups(views, images):  # the images of a group are freed before those of the next are made
            probs += map(self.network, self._view_program(group)(args=(distributed,)))
        return tf.stack(probs, axis=1)

    def probabilities(self, images: Any) -> tf.Tensor:
        """(B, C) probabilities of a distributed batch of the network's input: what `network` compiles."""

        def outputs(local: tf.Tensor) -> tf.Tensor:
            return output_of_logits(self._model(local, training=False), self._target)

        return self._strategy.gather(self._strategy.run(outputs, (images,)), axis=0)
