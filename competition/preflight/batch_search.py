"""The largest batch that fits a TPU, found with few compilations."""

from collections.abc import Callable

from competition.preflight.results import PreflightResult

GRAIN = 8  # images per device: a TPU pads the batch dimension to multiples of 8


def largest_batch(
    check: Callable[[int], PreflightResult], replicas: int, start: int, most: int
) -> PreflightResult | None:
    """Find the largest global batch that fits: GRAIN more images per replica do not fit or exceed `most`.

    check: global batch -> result.  Memory grows almost linearly with the batch, so each guess is extrapolated from two
    results; four compilations are usually enough. None if not even GRAIN images per replica fit.
    """
    grain = replicas * GRAIN
    results: dict[int, PreflightResult] = {}
    top = most // grain
    low, high = 0, top + 1  # `low` units fit, `high` units do not
    units = min(max(round(start / grain), 1), max(top, 1))
    while high - low > 1:
        results[units] = result = check(units * grain)
        if not result.good and result.verdict != "too_big":
            return result
        low, high = (units, high) if result.good else (low, units)
        units = _next_guess({u: a for u, a in results.items() if a.memory}, low, high)
    return results.get(low)


def _next_guess(results: dict[int, PreflightResult], low: int, high: int) -> int:
    """A value between `low` and `high`, where there is one."""
    points = sorted((units, result.memory, result.limit) for units, result in results.items())
    if not points:
        return (low + high) // 2
    if len(points) == 1:
        units, memory, limit = points[0]
        guess = int(units * limit / memory)
    else:
        (u1, m1, limit), (u2, m2, _) = sorted(points, key=lambda p: abs(p[1] - p[2]))[:2]
        slope = (m2 - m1) / (u2 - u1)
        guess = int(u1 + (limit - m1) / slope) if slope > 0 else (low + high) // 2
    # A guess outside is usually close to the bound; the distance doubles while the guesses stay outside.
    distance = 2 ** max(len(points) - 3, 0)
    if guess <= low:
        guess = low + distance
    elif guess >= high:
        guess = high - distance
    return min(max(guess, low + 1), high - 1)
