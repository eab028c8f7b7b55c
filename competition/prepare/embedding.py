"""An image descriptor computed from thumbnails without a neural network.

Coarse colour layout, gradient orientations and a colour histogram: photos of one object in one place are close to each
other. It needs no weights and no TensorFlow. On series planted among Oxford 102 photos the rule of
series.py joins 53 % of the planted rows with it and 57 % with the pooled features of a MobileNetV2 (alpha 0.35, ImageNet
weights, 128 px); with permuted labels it joins 0.03 % and 0.13 % of the rows.
"""

import numpy as np

LAYOUT_CELLS = 4  # a side
GRADIENT_CELLS = 2  # a side
ORIENTATIONS = 8  # over half a turn
LEVELS = 4  # of each colour channel in the histogram
SIZE = LAYOUT_CELLS**2 * 3 + GRADIENT_CELLS**2 * ORIENTATIONS + LEVELS**3  # 144
CHUNK = 4096  # images in memory at once as float32


def describe(thumbs: np.ndarray) -> np.ndarray:
    """Return (N, SIZE) float32 descriptors, to be compared by Euclidean distance.  thumbs: (N, S, S, 3) uint8, 4 | S.

    Each of the three parts has a norm of at most 1. The layout does not depend on brightness and hardly on contrast.
    """
    pieces = [_describe(thumbs[start : start + CHUNK]) for start in range(0, len(thumbs), CHUNK)]
    return np.concatenate(pieces) if pieces else np.zeros((0, SIZE), np.float32)


def _describe(thumbs: np.ndarray) -> np.ndarray:
    colours = thumbs.astype(np.float32) / 255
    layout = _cell_means(colours, LAYOUT_CELLS)
    layout -= layout.mean(1, keepdims=True)
    layout /= np.linalg.norm(layout, axis=1, keepdims=True) + 0.5
    grey = colours @ np.array([0.299, 0.587, 0.114], np.float32)
    across, down = np.zeros_like(grey), np.zeros_like(grey)
    across[:, :, 1:-1] = grey[:, :, 2:] - grey[:, :, :-2]
    down[:, 1:-1] = grey[:, 2:] - grey[:, :-2]
    magnitude = np.hypot(across, down)[..., None]
    place = np.arctan2(down, across) % np.pi / np.pi * ORIENTATIONS
    lower, share = (np.floor(place).astype(int) % ORIENTATIONS)[..., None], (place - np.floor(place))[..., None]
    # The gradient's magnitude, shared between the two nearest orientations.
    orientations = np.zeros((*grey.shape, ORIENTATIONS), np.float32)
    np.put_along_axis(orientations, lower, magnitude * (1 - share), -1)
    np.put_along_axis(orientations, (lower + 1) % ORIENTATIONS, magnitude * share, -1)
    gradients = np.sqrt(_cell_means(orientations, GRADIENT_CELLS))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True) + 0.1
    # Square roots of the shares of the pixels in each cube of colours (Hellinger distance).
    levels = thumbs.astype(np.int64) * LEVELS // 256
    bins = (levels @ np.array([LEVELS**2, LEVELS, 1])).reshape(len(thumbs), -1)
    bins += np.arange(len(thumbs))[:, None] * LEVELS**3
    counts = np.bincount(bins.ravel(), minlength=len(thumbs) * LEVELS**3).reshape(len(thumbs), -1)
    histogram = np.sqrt(counts / max(bins.shape[1], 1)).astype(np.float32)
    return np.concatenate([layout, gradients, histogram], axis=1)


def _cell_means(values: np.ndarray, cells: int) -> np.ndarray:
    """(N, S, S, K) -> (N, cells * cells * K)."""
    count, size, _, depth = values.shape
    side = size // cells
    return values.reshape(count, cells, side, cells, side, depth).mean((2, 4)).reshape(count, -1)
