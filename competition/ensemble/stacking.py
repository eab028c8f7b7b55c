"""Logistic stacking with few parameters (Wolpert 1992): softmax of sum_m w_m log p_m + b.

One weight per member and one offset per class: a logarithmic opinion pool with the weights of a conditional logistic
regression. A full multinomial regression would have M x C x C coefficients, more than rows.
"""

import numpy as np


def stack(parts: np.ndarray, labels: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """parts: (M, N, C) float32 log probabilities.  labels: (N,) int.  Returns (M,) weights >= 0 and (C,) offsets.

    Minimises the log loss summed over rows plus ridge / 2 * (|w - 1/M|^2 + |b|^2), which is convex, by L-BFGS-B.
    """
    from scipy.optimize import minimize

    members, rows, classes = parts.shape
    row_numbers = np.arange(rows)
    start = np.r_[np.full(members, 1 / members), np.zeros(classes)]

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        logits = np.tensordot(x[:members].astype(np.float32), parts, 1) + x[members:].astype(np.float32)
        logits -= logits.max(1, keepdims=True)
        probs = np.exp(logits)
        total = probs.sum(1)
        value = np.sum(np.log(total), dtype=np.float64) - logits[row_numbers, labels].sum(dtype=np.float64)
        probs /= total[:, None]
        probs[row_numbers, labels] -= 1  # now the derivative with respect to the logits
        gradient = np.r_[[np.vdot(probs, part) for part in parts], probs.sum(0)].astype(np.float64)
        deviation = x - start
        # Per row, so that the optimiser's tolerances do not depend on N.
        return (value + ridge / 2 * deviation @ deviation) / rows, (gradient + ridge * deviation) / rows

    bounds = [(0, None)] * members + [(None, None)] * classes
    result = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200, "ftol": 1e-8})
    return result.x[:members], result.x[members:]
