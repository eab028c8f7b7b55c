"""Frozen networks of timm (architecture timm:NAME): PyTorch computes their features, on a GPU that it sees, else on the CPU.

Heads, folds, tuning and blend are those of every frozen-feature member. PyTorch takes no part after the features are stored.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from competition.config.errors import UserError, did_you_mean, how_to_install
from competition.config.params import TIMM, Member
from competition.ensemble.view_transforms import View
from competition.training.backend import is_installed
from competition.training.engine import apply_views, collect_probabilities

if TYPE_CHECKING:
    import torch
    from torch.nn import Module


class TimmEngine:
    """What features.py needs of an engine, for a network of timm without its last layer."""

    def __init__(self, member: Member, predict_batch: int) -> None:
        """Raises UserError if timm is not installed, does not know the network, or the weights are not of it."""
        if not (is_installed("timm") and is_installed("torch")):
            raise UserError(f"{member.architecture}: PyTorch and timm are not installed; {how_to_install('timm')}")
        import torch

        self.predict_batch = predict_batch
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._network = _network(member).to(self._device).train(mode=False)
        scaling = [torch.tensor(self._network.pretrained_cfg[key], device=self._device) for key in ("mean", "std")]
        self._mean, self._deviation = (255 * values.reshape(1, 3, 1, 1) for values in scaling)
        size = member.image_size
        with torch.inference_mode():
            self.width = int(_features(self._network, torch.zeros((1, 3, size, size), device=self._device)).shape[1])

    def probabilities(self, batches: Iterator[np.ndarray], count: int, views: Sequence[View]) -> np.ndarray:
        """(n, V, F) float32, the features; see Engine.probabilities."""
        import torch

        transform = apply_views(views)

        def features_of(images: np.ndarray) -> np.ndarray:
            """(B, V, F) float32 of images (B, H, W, 3) uint8."""
            features = []
            with torch.inference_mode():
                for view in transform(images):
                    pixels = torch.tensor(np.asarray(view), device=self._device).permute(0, 3, 1, 2)
                    output = _features(self._network, (pixels - self._mean) / self._deviation)
                    features.append(output.float().cpu().numpy())
            return np.stack(features, axis=1)

        return collect_probabilities(batches, count, features_of)


def _features(network: "Module", pixels: "torch.Tensor") -> "torch.Tensor":
    """(B, F): what the last layer reads, and the mean of the patches where that is the class token of a transformer."""
    import torch

    tokens = network.forward_features(pixels)
    pooled = network.forward_head(tokens)
    if getattr(network, "global_pool", None) != "token":
        return pooled
    return torch.cat([pooled, tokens[:, network.num_prefix_tokens :].mean(1)], 1)


def _network(member: Member) -> "Module":
    """The network without its last layer, for images of the member's size, with its weights."""
    import timm
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    name, weights = member.architecture.removeprefix(TIMM), member.weights
    if not timm.is_model(name):
        hint = did_you_mean(name.partition(".")[0], timm.list_models())
        raise UserError(f"{member.architecture}: timm {timm.__version__} has no network of this name{hint}")
    torch.manual_seed(member.train.seed)  # of random weights
    try:
        network = timm.create_model(name, num_classes=0, pretrained=weights == "imagenet")
        if weights not in ("none", "imagenet"):
            state = load_file(weights)
            # timm's own loading only logs what a file lacks; the last layer that it has in excess is not needed.
            network.load_state_dict({key: state[key] for key in network.state_dict()})
    except (OSError, RuntimeError, KeyError, SafetensorError) as error:
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        reason = f"it has no {error}" if isinstance(error, KeyError) else first_line
        raise UserError(
            f"{member.architecture}: weights {weights} cannot be loaded ({reason}); expected imagenet, which timm downloads from "
            "the Hugging Face hub, or a .safetensors file of this network"
        ) from None
    if hasattr(network, "set_input_size"):  # networks with position embeddings; others take any size
        network.set_input_size(img_size=member.image_size)
    return network
