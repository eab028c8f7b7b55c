"""Which parts of an image speak for a class: Grad-CAM where a network averages a grid of features, else occlusion.

A network that ends in a global average of a grid of features and one Dense layer: the gradient of a logit with respect to the
features is the class's row of that layer, so Grad-CAM (Selvaraju et al., 2017) is equal to CAM (Zhou et al., 2016), and one
forward pass is enough on every backend. Any other network, such as a transformer with a class token: how much the logit
falls when a part of the image is covered (Zeiler and Fergus, 2014), which also needs forward passes only.
"""

import keras
import numpy as np

from competition.config.params import Member
from competition.config.plugins import Plugins
from competition.training.engine import State, saved_variables
from competition.training.head_trainer import network_with_head
from competition.training.model import build

BATCH = 16  # images per forward pass
CELLS = 8  # occlusion covers a window around each of CELLS x CELLS places
WINDOW = 0.25  # side of the window, as a share of the image's


class ClassMaps:
    """The maps of a member's fold models."""

    def __init__(self, member: Member, classes: int, plugins: Plugins) -> None:
        self._member, self._plugins = member, plugins
        without_weights = member.without_pretrained_weights if member.head is None else member
        self.model = build(without_weights, classes, plugins=plugins)
        self._network, self.method = self.model, "Occlusion"
        if member.head is None:  # not every head is a row of weights per class
            # Grad-CAM needs a grid of features (B, h, w, F) whose global average is what the last layer reads.
            features = self.model.get_layer("logits").input
            while isinstance(layer := features._keras_history.operation, keras.layers.Dropout):
                features = layer.input
            if isinstance(layer, keras.layers.GlobalAveragePooling2D):
                self._network, self.method = keras.Model(self.model.inputs[0], layer.input), "Grad-CAM"

    def load_weights(self, weights: State) -> None:
        """weights: of a fold model, as in weights.npz."""
        if self._member.head is not None:
            self._network = network_with_head(self._member, weights, "single", self._plugins)
            return
        for name, variable in saved_variables(self.model):
            variable.assign(weights[name])

    def maps(self, pixels: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """(N, h, w) float32 in 0..1, 1 at the part that speaks most for the class; all 0 if none does.

        pixels: (N, H, W, 3) uint8.  classes: (N,) int, the class whose map is wanted.
        """
        if self.method == "Grad-CAM":
            kernel = np.asarray(keras.ops.convert_to_numpy(self.model.get_layer("logits").kernel), np.float32)
            maps = np.maximum(np.einsum("nhwf,fn->nhw", self._outputs(pixels), kernel[:, classes]), 0)
        else:
            rows, (height, width) = np.arange(len(pixels)), pixels.shape[1:3]
            scores = self._outputs(pixels)[rows, classes]
            cover = pixels.mean((1, 2), keepdims=True).astype(np.uint8)  # the mean colour of each image
            maps = np.zeros((len(pixels), CELLS, CELLS), np.float32)
            for y, x in np.ndindex(CELLS, CELLS):
                top, left = (int(((n + 0.5) / CELLS - WINDOW / 2) * side) for n, side in ((y, height), (x, width)))
                bottom, right = top + max(int(WINDOW * height), 1), left + max(int(WINDOW * width), 1)
                covered = pixels.copy()
                covered[:, max(top, 0) : bottom, max(left, 0) : right] = cover
                maps[:, y, x] = np.maximum(scores - self._outputs(covered)[rows, classes], 0)
        return maps / np.maximum(maps.max((1, 2), keepdims=True), 1e-12)

    def _outputs(self, pixels: np.ndarray) -> np.ndarray:
        """Features (N, h, w, F) or logits (N, C) as float32."""
        parts = [pixels[start : start + BATCH].astype(np.float32) for start in range(0, len(pixels), BATCH)]
        outputs = [keras.ops.cast(self._network(part, training=False), "float32") for part in parts]
        return np.concatenate([np.asarray(keras.ops.convert_to_numpy(output)) for output in outputs])
