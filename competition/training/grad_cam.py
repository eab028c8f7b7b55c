"""Grad-CAM: which parts of an image speak for a class (Selvaraju et al., 2017).

The networks here end in a global average of the features and one Dense layer, so the gradient of a logit with respect to
the features is the class's row of that layer: Grad-CAM is then equal to CAM (Zhou et al., 2016), and one forward pass is
enough on every backend.
"""

from dataclasses import replace
from typing import Any

import keras
import numpy as np

from competition.config.errors import UserError
from competition.config.params import Member
from competition.config.validation import FROM_FILE
from competition.training.engine import State, saved_variables
from competition.training.model import build

BATCH = 16  # images per forward pass


class GradCam:
    """The maps of a member's fold models."""

    def __init__(self, member: Member, classes: int) -> None:
        """Raises UserError for a network that does not average a grid of features, such as a transformer."""
        # The weights are those of a fold model; pretrained ones need not be there.
        member = member if member.architecture == FROM_FILE else replace(member, weights="none")
        self.model = build(member, classes)
        pools = [layer for layer in self.model.layers if isinstance(layer, keras.layers.GlobalAveragePooling2D)]
        head = self.model.get_layer("logits")
        if not pools or pools[-1].output.shape[-1] != head.kernel.shape[0]:
            raise UserError(
                f"{member.architecture} has no grid of features that is averaged before its last layer, so there are no Grad-CAM "
                "maps of it; MEMBER= chooses another member"
            )
        self._features = keras.Model(self.model.inputs[0], pools[-1].input)

    def load_weights(self, weights: State) -> None:
        """weights: of a fold model, as in weights.npz."""
        for name, variable in saved_variables(self.model):
            variable.assign(weights[name])

    def maps(self, pixels: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """(N, h, w) float32 in 0..1, 1 at the part that speaks most for the class; all 0 if none does.

        pixels: (N, H, W, 3) uint8.  classes: (N,) int, the class whose map is wanted.
        """
        kernel = np.asarray(keras.ops.convert_to_numpy(self.model.get_layer("logits").kernel), np.float32)
        maps = []
        for start in range(0, len(pixels), BATCH):
            part = slice(start, start + BATCH)
            features: Any = self._features(pixels[part].astype(np.float32), training=False)
            grid = np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(features, "float32")))
            maps.append(np.maximum(np.einsum("nhwf,fn->nhw", grid, kernel[:, classes[part]]), 0))
        raw_maps = np.concatenate(maps)
        return raw_maps / np.maximum(raw_maps.max((1, 2), keepdims=True), 1e-12)
