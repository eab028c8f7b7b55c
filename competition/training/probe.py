"""A last layer that already fits the pretrained features: fine-tuning then starts from a good place instead of a random one.

Linear probing first and fine-tuning second also distorts the features less (Kumar et al. 2022, "Fine-Tuning can Distort
Pretrained Features and Underperform Out-of-Distribution"). The features need one pass without gradients, for all folds.
"""

from typing import Any

import keras
import numpy as np

from competition.data.batches import prediction_batches
from competition.data.cache import Pixels

INVERSE_STRENGTH = 0.01  # C of the logistic regression on standardised features
ITERATIONS = 200


def pooled_features(model: keras.Model, pixels: Pixels, rows: np.ndarray, batch: int) -> np.ndarray:
    """(len(rows), F) float32: what the last layer is given, at the weights the model has now, without augmentation."""
    below = keras.Model(model.inputs, model.get_layer("logits").input)
    found = []
    for numbers, images in prediction_batches(pixels, rows, batch):
        # Compiled, unlike a call of the model: a third of the memory, a quarter of the time.
        given = below.predict_on_batch(images.astype(np.float32))
        found.append(given[numbers >= 0].astype(np.float32))
    return np.concatenate(found)


def linear_probe(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """(kernel (F, C), bias (C,)) of a logistic regression, in the units of the features.

    features: (n, F).  labels: (n,) int.  weights: (n,) of the rows. A class without rows gets the lowest bias.
    """
    from sklearn.linear_model import LogisticRegression

    mean, deviation = features.mean(0), features.std(0) + 1e-6
    fitted = LogisticRegression(C=INVERSE_STRENGTH, max_iter=ITERATIONS)
    fitted.fit((features - mean) / deviation, labels, sample_weight=weights)
    rows, offsets = fitted.coef_, fitted.intercept_
    if len(fitted.classes_) == 2:  # scikit-learn keeps one row for two classes
        rows, offsets = np.concatenate([-rows, rows]) / 2, np.concatenate([-offsets, offsets]) / 2
    kernel = np.zeros((features.shape[1], classes))
    bias = np.full(classes, offsets.min() - 1.0)
    kernel[:, fitted.classes_] = rows.T / deviation[:, None]
    bias[fitted.classes_] = offsets - (mean / deviation) @ rows.T
    return kernel.astype(np.float32), bias.astype(np.float32)


def with_head(weights: dict[str, Any], kernel: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    """The weights with another last layer."""
    ends = {"logits/kernel": kernel, "logits/bias": bias}
    return {name: next((v for end, v in ends.items() if name.endswith(end)), value) for name, value in weights.items()}
