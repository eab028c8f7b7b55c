"""Results as lines a person reads in a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from competition.ensemble.bootstrap import Difference
from competition.ensemble.chain import Chain
from competition.ensemble.diversity import Diversity
from competition.ensemble.metrics import Metric
from competition.ensemble.tables import Row


def verdict(difference: Difference) -> str:
    """A gain within its standard error is noise."""
    if not difference.error and not difference.value:
        return "no difference"
    if abs(difference.value) <= difference.error:
        return "noise"
    return "a gain" if difference.value > 0 else "a loss"


def blend_lines(metric: Metric, chain: Chain, scores: Mapping[str, Any], over: Mapping[str, Difference]) -> list[str]:
    lines = [f"{metric.name} on out-of-fold rows"]
    for name, single in scores["members"].items():
        views = ", ".join(f"{view} {share:.2f}" for view, share in chain.policies[name].items())
        weight = chain.blend.weights.get(name, 0.0)
        lines.append(
            f"  {name:<16} {single['score']:.4f} ± {single['standard_error']:.4f}  weight {weight:.2f}; views {views}"
        )
    lines += [
        f"  {'blend':<16} {scores['chosen_on']:.4f}           on the rows it was chosen on ({chain.blend.method}, {chain.decision.rule})",
        f"  {'honest':<16} {scores['honest']:.4f} ± {scores['standard_error']:.4f}  on rows that took no part in the choice",
    ]
    for name, difference in over.items():
        lines.append(f"  {'over ' + name:<22} {difference.value:+.4f} ± {difference.error:.4f}: {verdict(difference)}")
    low, high = scores["leaderboard_band"]
    lines.append(
        f"  expected on {scores['test_rows']:,} test rows: {low:.4f} to {high:.4f} (95 of 100, if they are like the training rows)"
    )
    return lines


def diversity_lines(found: Diversity) -> list[str]:
    if len(found.names) < 2:
        return []
    lines = [f"  {'member':<16} {'alone':>7} {'worth':>8}  agreement with " + ", ".join(found.names)]
    for n, name in enumerate(found.names):
        agreement = " ".join(f"{share:.3f}" for share in found.agreement[n])
        lines.append(f"  {name:<16} {found.score[n]:>7.4f} {found.worth[n]:>+8.4f}  {agreement}")
    return lines


def markdown(rows: Sequence[Row], metric: Metric, references: Sequence[str]) -> list[str]:
    """A table for a README: name, chosen on, honest with its standard error, honest gains."""
    head = [
        "",
        "on the rows it was chosen on",
        f"honest {metric.name}",
        *(f"honest gain over {name}" for name in references),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        gains = [_gain(row.over[name]) if name in row.over else "" for name in references]
        honest = f"{metric.shown(row.honest.value):.4f} ± {row.honest.error:.4f}"
        lines.append("| " + " | ".join([row.name, f"{metric.shown(row.chosen_on):.4f}", honest, *gains]) + " |")
    return lines


def _gain(difference: Difference) -> str:
    return (
        f"{difference.value:+.4f} ± {difference.error:.4f}, {verdict(difference)}"
        if np.isfinite(difference.value)
        else ""
    )
