"""Colour, erasing, mixup and CutMix of a batch inside the compiled step, in operations that a TPU has.

The images are those that the host would make, up to one grey level where a value is close to a half.
"""

from keras import ops

from competition.images.augment import ERASED as ERASED_LEVEL
from competition.images.mixing import COLOUR, CUT, ERASED, OWN_SHARE
from competition.training.backend import Tensor
from competition.training.device import Device


def is_on_device(device: Device) -> bool:
    """Whether these operations run on the device: not on a CPU, where OpenCV is faster than the compiled step.

    Nor on several TensorFlow replicas, which cannot mix an image with one of another replica.
    """
    return device.kind != "cpu" and (device.backend == "jax" or device.replicas == 1)


def augmented(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(images, targets) of the network.

    images: (B, H, W, 3) uint8, which are returned as they are, or a pair of them and their (B, COUNT) float32 numbers.
    targets: (B, C) float32. Both are of the whole batch.
    """
    if not isinstance(images, tuple | list):
        return images, targets
    pixels, numbers = images
    size = pixels.shape[1]
    mixed = _coloured(ops.cast(pixels, "float32"), numbers[:, COLOUR])
    mixed = ops.where(_inside(numbers[:, ERASED], size), float(ERASED_LEVEL), mixed)
    own_share, cut = numbers[:, OWN_SHARE], numbers[:, CUT]
    before, share = ops.roll(mixed, 1, axis=0), own_share[:, None, None, None]
    mixed = ops.where(_inside(cut, size), before, ops.round(share * mixed + (1.0 - share) * before))
    own = (own_share * (1.0 - (cut[:, 1] - cut[:, 0]) * (cut[:, 3] - cut[:, 2]) / float(size * size)))[:, None]
    return ops.cast(mixed, "uint8"), own * targets + (1.0 - own) * ops.roll(targets, 1, axis=0)


def _coloured(pixels: Tensor, changes: Tensor) -> Tensor:
    """Brightness, contrast and saturation, rounded and clipped once."""
    added, contrast, saturation = (changes[:, n, None, None, None] for n in range(3))
    mean = ops.mean(pixels, axis=(1, 2, 3), keepdims=True)
    pixels = contrast * pixels + (added + (1.0 - contrast) * mean)
    grey = ops.mean(pixels, axis=3, keepdims=True)
    return ops.clip(ops.round(grey + saturation * (pixels - grey)), 0.0, 255.0)


def _inside(boxes: Tensor, size: int) -> Tensor:
    """(B, H, W, 1) bool masks of (B, 4) boxes."""
    places = ops.arange(size, dtype="float32")[None]
    first_y, end_y, first_x, end_x = (boxes[:, n, None] for n in range(4))
    rows, columns = (places >= first_y) & (places < end_y), (places >= first_x) & (places < end_x)
    return (rows[:, :, None] & columns[:, None, :])[..., None]
