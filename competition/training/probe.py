"""Linear probing: fit the last layer to the pretrained features before fine-tuning.

It distorts the features less than fine-tuning from a random last layer (Kumar et al. 2022, "Fine-Tuning can Distort
Pretrained Features and Underperform Out-of-Distribution"). The features take one pass without gradients for all folds.
"""

from typing import Any

import keras
import numpy as np

from competition.images.batches import prediction_batches
from competition.images.pixels import Pixels

INVERSE_STRENGTH = 0.01  # C of the logistic regression on standardised features
ITERATIONS = 200


def pooled_features(model: keras.Model, pixels: Pixels, rows: np.ndarray, batch: int) -> np.ndarray:
    """Input of the last layer for each row, (len(rows), F) float32, by the model's current weights, without augmentation."""
    backbone = keras.Model(model.inputs, model.get_layer("logits").input)
    features = []
    for batch_rows, images in prediction_batches(pixels, rows, batch):
        # Compiled, which takes a third of the memory and a quarter of the time of calling the model.
        batch_features = backbone.predict_on_batch(images.astype(np.float32))
        features.append(batch_features[batch_rows >= 0].astype(np.float32))
    return np.concatenate(features)


def linear_probe(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """(kernel (F, C), bias (C,)) of a logistic regression fitted on standardised features, for unstandardised ones.

    features: (n, F).  labels: (n,) int.  weights: (n,) of the rows.
    A class without rows gets the lowest bias.
    """
    from sklearn.linear_model import LogisticRegression

    mean, deviation = features.mean(0), features.std(0) + 1e-6
    regression = LogisticRegression(C=INVERSE_STRENGTH, max_iter=ITERATIONS)
    regression.fit((features - mean) / deviation, labels, sample_weight=weights)
    coefficients, offsets = regression.coef_, regression.intercept_
    if len(regression.classes_) == 2:  # scikit-learn gives one row for two classes
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        offsets = np.concatenate([-offsets, offsets]) / 2
    kernel = np.zeros((features.shape[1], classes))
    bias = np.full(classes, offsets.min() - 1.0)
    kernel[:, regression.classes_] = coefficients.T / deviation[:, None]
    bias[regression.classes_] = offsets - (mean / deviation) @ coefficients.T
    return kernel.astype(np.float32), bias.astype(np.float32)


def with_head(weights: dict[str, Any], kernel: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    """The weights with the last layer replaced."""
    head = {"logits/kernel": kernel, "logits/bias": bias}
    return {
        name: next((v for suffix, v in head.items() if name.endswith(suffix)), value) for name, value in weights.items()
    }
