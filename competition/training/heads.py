"""Heads of frozen-feature members: fitted by scikit-learn to the features of a network that is not trained.

A fitted head is a set of arrays, so it is stored without pickle, and `head_outputs` computes it with NumPy or, as the last
layer of an exported network, with Keras: both run the same lines.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from competition.config.params import Head
from competition.ensemble.metrics import TargetKind
from competition.training.backend import Tensor
from competition.training.logistic_regression import Alive, logistic_path

Arrays = dict[str, np.ndarray]  # "head/..." -> float32 array

# Tried where head.strengths states none. Measured on Oxford 102 (docs/frozen_features.md).
STRENGTHS: dict[str, tuple[float, ...]] = {
    "linear": (0.003, 0.03, 0.3, 3.0, 30.0),
    "rbf": (10.0, 100.0, 1e3, 1e4),
    "mlp": (1e-3, 1.0),
    "neighbours": (5.0, 15.0),
}
LANDMARKS = 1_000  # rows that approximate the kernel of `rbf` (Nystroem); 3,000 gain nothing and cost thrice as much
LEAST_SCALE = 0.1  # of the mean deviation of the features
GAMMA = 0.5  # of the kernel exp(-GAMMA / F * squared distance of standardised features)
MLP_EPOCHS = 60
INNER_PARTS = 4
FEW_ROWS = 500
MANY_ROWS = 2_000  # of which one view says as much about the strength as all; of 700 rows it does not (macro-F1 .692 instead of .719)
FACTOR_RANGE = 3.0  # of the logarithm of 1 / temperature
NEIGHBOUR_TEMPERATURE = 0.05  # of the cosine similarities that weight the neighbours
CLASS_FLOOR = 1e-3  # probability shared by the classes that no neighbour has
# A context with products of matrices on one thread: heads are fitted side by side instead, and do not depend on the number of cores.
# Threads that wait for each other take 30 times as long on small matrices while other processes compute.
ONE_THREAD_EACH = partial(threadpool_limits, 1)


@dataclass(frozen=True)
class FittedHead:
    arrays: Arrays
    strength: float
    loss: float  # on the inner rows that chose the strength, or on those that it was fitted to if there was nothing to choose


@dataclass(frozen=True)
class HeadRows:
    """Training rows of a head.

    features: (V, n, F) float32.  targets: (n,) int of C classes, (n, C) bool or (n,) float64.  weights: (n,).  classes: C.
    may_root: features that are never negative may be replaced by their square roots.
    """

    features: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    classes: int
    kind: TargetKind
    may_root: bool = True

    def part(self, rows: np.ndarray) -> "HeadRows":
        """Some of the rows."""
        features, targets, weights = self.features[:, rows], self.targets[rows], self.weights[rows]
        return replace(self, features=features, targets=targets, weights=weights)


def fit_path(
    head: Head, rows: HeadRows, strengths: Sequence[float], seed: int, alive: Alive = lambda: None
) -> list[Arrays]:
    """Fit a head of each strength. Each view of a row counts as a row with an equal share of its weight.

    Raises ValueError for features that are not finite.
    """
    features = rows.features.reshape(-1, rows.features.shape[2])
    arrays = _scaling(rows.features[0], rows.may_root)
    x = _scaled(arrays, features, np)
    if head.kind == "neighbours":
        shares = rows.targets[:, None] if rows.targets.ndim == 1 else rows.targets
        shares = np.eye(rows.classes)[rows.targets] if rows.kind == "single" else shares
        unit = x[: len(rows.targets)] / np.linalg.norm(x[: len(rows.targets)], axis=1, keepdims=True)
        arrays |= {"head/rows": unit, "head/shares": shares.astype(np.float32)}
        counts = [min(strength, len(unit)) for strength in strengths]
        return [arrays | {"head/neighbours": np.asarray(count, np.float32)} for count in counts]
    views = len(rows.features)
    targets, weights = np.concatenate([rows.targets] * views), np.concatenate([rows.weights / views] * views)
    of_one_view = replace(rows, features=x[None], targets=targets, weights=weights)
    if head.kind == "mlp":
        return [arrays | _fit_mlp(head, of_one_view, strength, seed, alive) for strength in strengths]
    basis: np.ndarray | None = None
    if head.kind == "rbf":
        landmarks = np.random.default_rng(seed).permutation(len(x))[:LANDMARKS]
        arrays["head/landmarks"] = x[np.sort(landmarks)].astype(np.float32)
        # Nystroem: in this basis the inner product of two rows approximates their kernel.
        values, vectors = np.linalg.eigh(_kernel_values(arrays, arrays["head/landmarks"], np).astype(np.float64))
        basis = (vectors / np.sqrt(np.maximum(values, 1e-6))).astype(np.float32)
        of_one_view = replace(of_one_view, features=(_kernel_values(arrays, x, np) @ basis)[None])
    path = []
    for kernel, bias in _fit_linear(of_one_view, strengths, alive):
        of_x = kernel if basis is None else (basis @ kernel).astype(np.float32)
        path.append(arrays | {"head/kernel": of_x, "head/bias": bias})
    return path


def head_outputs(head: Mapping[str, Tensor], features: Tensor, kind: TargetKind, xp: Any = np) -> Tensor:
    """(n, C) logits of features (n, F), or values (n, 1) of a regression.  xp: numpy, or keras.ops for Keras tensors."""
    x = _scaled(head, features, xp)
    if "head/rows" in head:
        return _neighbour_outputs(head, x, kind, xp) * head.get("head/factor", 1.0)
    if "head/landmarks" in head:
        x = _kernel_values(head, x, xp)
    if "head/hidden_kernel" in head:
        x = xp.maximum(xp.matmul(x, head["head/hidden_kernel"]) + head["head/hidden_bias"], 0.0)
    return (xp.matmul(x, head["head/kernel"]) + head["head/bias"]) * head.get("head/factor", 1.0)


def probabilities_of(outputs: np.ndarray, kind: TargetKind) -> np.ndarray:
    """(n, C) logits -> (n, C) float32 probabilities of classes or of independent labels; values of a regression stay."""
    from scipy.special import expit, softmax

    if kind == "regression":
        return np.asarray(outputs, np.float32)
    return np.asarray(softmax(outputs, 1) if kind == "single" else expit(outputs), np.float32)


def output_loss(probs: np.ndarray, rows: HeadRows) -> float:
    """Weighted log loss of probabilities (n, C), or the squared error of values (n, 1)."""
    if rows.kind == "regression":
        losses = (probs[:, 0] - rows.targets) ** 2
    elif rows.kind == "single":
        losses = -np.log(np.maximum(probs[np.arange(len(probs)), rows.targets], 1e-7))
    else:
        clipped = np.clip(probs, 1e-7, 1 - 1e-7)
        losses = -np.where(rows.targets, np.log(clipped), np.log(1 - clipped)).mean(1)
    return float(np.average(losses, weights=rows.weights))


def fit_best_head(
    head: Head, rows: HeadRows, inner_parts: Sequence[np.ndarray], seed: int, alive: Alive = lambda: None
) -> FittedHead:
    """Choose the strength of the least loss on rows that the head was not fitted to, then fit it to all rows.

    Losses are compared at the temperature that is best for each strength, and this temperature becomes part of the head: a
    strong penalty makes probabilities too even, which says nothing about their order.
    inner_parts: (n,) bool each, rows that are held out together; [] = nothing is chosen, the middle strength is used.
    alive: called in several threads.
    """
    from scipy.optimize import minimize_scalar

    strengths = sorted(head.strengths or STRENGTHS[head.kind])
    chosen_on = rows if len(rows.targets) <= MANY_ROWS else replace(rows, features=rows.features[:1])

    def held_out_outputs(inner: np.ndarray) -> list[np.ndarray]:
        path, views = fit_path(head, chosen_on.part(~inner), strengths, seed, alive), rows.part(inner).features
        return [np.mean([head_outputs(fitted, view, rows.kind) for view in views], 0) for fitted in path]

    with ONE_THREAD_EACH():
        if len(strengths) == 1 or not inner_parts:
            strength = strengths[len(strengths) // 2]
            (arrays,) = fit_path(head, rows, [strength], seed, alive)
            outputs_of_rows = head_outputs(arrays, rows.features[0], rows.kind)
            return FittedHead(arrays, strength, output_loss(probabilities_of(outputs_of_rows, rows.kind), rows))
        with ThreadPoolExecutor(min(len(inner_parts), os.cpu_count() or 1)) as pool:
            outputs = [np.concatenate(parts) for parts in zip(*pool.map(held_out_outputs, inner_parts), strict=True)]
        held_out = rows.part(np.concatenate([np.flatnonzero(inner) for inner in inner_parts]))
        choices = []  # (least loss, factor of the outputs, which is 1 / temperature, that gives it; strength)
        for output, strength in zip(outputs, strengths, strict=True):
            if rows.kind == "regression":
                choices.append((output_loss(output, held_out), 1.0, strength))
                continue

            best = minimize_scalar(
                lambda exponent, output: output_loss(probabilities_of(output * np.exp(exponent), rows.kind), held_out),
                args=(output,),
                bounds=(-FACTOR_RANGE, FACTOR_RANGE),
                method="bounded",
            )
            choices.append((float(best.fun), float(np.exp(best.x)), strength))
        loss, factor, strength = min(choices)
        (arrays,) = fit_path(head, rows, [strength], seed, alive)
    return FittedHead(arrays | {"head/factor": np.asarray(factor, np.float32)}, strength, loss)


def inner_parts_of(strata: np.ndarray, groups: np.ndarray, seed: int) -> list[np.ndarray]:
    """Parts of the training rows of a fold model that are held out to choose a strength: (n,) bool each.

    strata: (n,) int, for example classes.  groups: (n,) int; duplicates of one photo stay together.
    One quarter of the rows; of few rows each quarter once, because a small part says little. [] if there are too few rows.
    """
    import warnings

    from sklearn.model_selection import StratifiedGroupKFold

    splitter = StratifiedGroupKFold(INNER_PARTS, shuffle=True, random_state=seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of classes with fewer rows than parts
            splits = list(splitter.split(strata, strata, groups))
    except ValueError:  # every class has fewer rows than parts
        return []
    kept = splits if len(strata) <= FEW_ROWS else splits[:1]
    return [np.isin(np.arange(len(strata)), inner) for _, inner in kept]


def _scaling(features: np.ndarray, may_root: bool) -> Arrays:
    """How features are standardised.  features: (n, F), untransformed views.

    Features that are never negative, such as those after a ReLU, are skewed: their square roots are standardised (macro-F1 of
    MobileNet on Oxford 102 at 128 px .913 instead of .897; signed roots of a ViT's features lose .004). One that hardly varies in
    these rows keeps a scale of LEAST_SCALE times the mean, or a row in which it does vary is all that it says (MobileNet on
    scanned digits .98 instead of .72).
    """
    is_rooted = bool(may_root and features.min() >= 0)
    values = np.sqrt(features) if is_rooted else features
    deviations = values.std(0)
    return {
        "head/mean": values.mean(0).astype(np.float32),
        "head/scale": np.hypot(deviations, LEAST_SCALE * deviations.mean() + 1e-6).astype(np.float32),
        "head/power": np.asarray(0.5 if is_rooted else 1.0, np.float32),
    }


def _scaled(head: Mapping[str, Tensor], features: Tensor, xp: Any) -> Tensor:
    is_rooted = float(head["head/power"]) == 0.5
    return ((xp.sqrt(xp.maximum(features, 0.0)) if is_rooted else features) - head["head/mean"]) / head["head/scale"]


def _kernel_values(head: Mapping[str, Tensor], x: Tensor, xp: Any) -> Tensor:
    """(n, m) kernel between rows x (n, F) and the landmarks."""
    landmarks = head["head/landmarks"]
    squares = xp.sum(xp.square(x), axis=1, keepdims=True) + xp.sum(xp.square(landmarks), axis=1)
    distances = xp.maximum(squares - 2.0 * xp.matmul(x, xp.transpose(landmarks)), 0.0)
    return xp.exp(-GAMMA / landmarks.shape[1] * distances)


def _fit_linear(rows: HeadRows, strengths: Sequence[float], alive: Alive) -> list[tuple[np.ndarray, np.ndarray]]:
    """(kernel (F, C), bias (C,)) float32 for each strength: a logistic regression, one per label, or a ridge regression.

    rows: of one view.  A class or label without rows gets a bias below all others.
    """
    from sklearn.linear_model import Ridge

    x, targets, weights = rows.features[0], rows.targets, rows.weights
    if not np.isfinite(x).all():
        raise ValueError("the features contain NaN or infinity")
    if rows.kind == "regression":
        ridges = [Ridge(alpha=1 / strength).fit(x, targets, sample_weight=weights) for strength in strengths]
        return [(r.coef_[:, None].astype(np.float32), np.asarray([r.intercept_], np.float32)) for r in ridges]
    truth = np.eye(rows.classes, dtype=bool)[targets] if rows.kind == "single" else targets.astype(bool)
    varies = truth.any(0) & ~truth.all(0)
    fitted = []
    for kernel, bias in logistic_path(x, truth[:, varies], weights, strengths, rows.kind, alive):
        floor = bias.min(initial=0.0) - 5.0
        # Of single labels only one class can be that of all rows; then no other class varies either.
        all_biases = np.where(truth.all(0), -floor if rows.kind == "multi" else 0.0, floor)
        all_kernels = np.zeros((x.shape[1], rows.classes), np.float32)
        all_kernels[:, varies], all_biases[varies] = kernel, bias
        fitted.append((all_kernels, all_biases.astype(np.float32)))
    return fitted


def _fit_mlp(head: Head, rows: HeadRows, strength: float, seed: int, alive: Alive) -> Arrays:
    """One hidden layer of ReLUs.  rows: of one view."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    alive()
    x, targets, weights = rows.features[0], rows.targets, rows.weights
    options = {"hidden_layer_sizes": (head.hidden,), "alpha": strength, "max_iter": MLP_EPOCHS, "random_state": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is fixed
        if rows.kind == "regression":
            mean, deviation = targets.mean(), targets.std() or 1.0
            network = MLPRegressor(**options).fit(x, (targets - mean) / deviation, sample_weight=weights)
        else:
            network = MLPClassifier(**options).fit(x, targets.astype(int), sample_weight=weights)
    (hidden, kernel), (hidden_bias, bias) = network.coefs_, network.intercepts_
    if rows.kind == "regression":
        kernel, bias = kernel * deviation, bias * deviation + mean
    elif rows.kind == "single":
        known = network.classes_
        if len(known) == 2:  # one output for two classes
            kernel, bias = np.concatenate([-kernel, kernel], 1) / 2, np.concatenate([-bias, bias]) / 2
        all_kernels, all_biases = np.zeros((len(kernel), rows.classes)), np.full(rows.classes, bias.min() - 5.0)
        all_kernels[:, known], all_biases[known] = kernel, bias
        kernel, bias = all_kernels, all_biases
    named = {"hidden_kernel": hidden, "hidden_bias": hidden_bias, "kernel": kernel, "bias": bias}
    return {f"head/{name}": np.asarray(value, np.float32) for name, value in named.items()}


def _neighbour_outputs(head: Mapping[str, Tensor], x: Tensor, kind: TargetKind, xp: Any) -> Tensor:
    """Logits of the weighted shares of the nearest training rows by cosine similarity, or their weighted mean value."""
    unit = x / xp.sqrt(xp.sum(xp.square(x), axis=1, keepdims=True) + 1e-12)
    similarities = xp.matmul(unit, xp.transpose(head["head/rows"]))
    nearest = xp.sort(similarities, axis=1)[:, -int(head["head/neighbours"])][:, None]
    weights = xp.where(similarities >= nearest, xp.exp((similarities - 1.0) / NEIGHBOUR_TEMPERATURE), 0.0)
    means = xp.matmul(weights, head["head/shares"]) / xp.sum(weights, axis=1, keepdims=True)
    if kind == "regression":
        return means
    floored = means * (1 - CLASS_FLOOR) + CLASS_FLOOR / means.shape[1]
    return xp.log(floored) if kind == "single" else xp.log(floored) - xp.log(1 - floored + 1e-7)


# Linear probing: the last layer is fitted to the pretrained features before fine-tuning, which distorts the features less than
# fine-tuning from a random last layer (Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features and Underperform
# Out-of-Distribution"). The features take one pass without gradients for all folds.
PROBE = Head("linear", strengths=(0.003, 0.01, 0.1, 1.0))


def linear_probe(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, classes: int, groups: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(kernel (F, C), bias (C,)) of a logistic regression fitted on standardised features, for unstandardised ones.

    Its penalty and its temperature are chosen within these rows, as those of a frozen-feature member: no constant suits both six
    and six hundred rows per class.
    features: (n, F).  labels: (n,) int.  weights: (n,) of the rows.  groups: (n,) int; duplicates of one photo stay together.
    A class without rows gets the lowest bias.
    """
    rows = HeadRows(features[None], labels, weights / weights.mean(), classes, "single", may_root=False)
    head = fit_best_head(PROBE, rows, inner_parts_of(labels, groups, seed), seed).arrays
    factor = float(head.get("head/factor", np.ones(())))
    kernel = head["head/kernel"] / head["head/scale"][:, None]
    bias = head["head/bias"] - head["head/mean"] @ kernel
    return (kernel * factor).astype(np.float32), (bias * factor).astype(np.float32)
