"""Results as lines a person reads in a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from competition.artifacts.ensemble_inputs import EnsembleInputs
from competition.ensemble.chain import Chain
from competition.ensemble.diversity import Diversity
from competition.ensemble.honest import HonestResult
from competition.ensemble.metrics import Metric
from competition.ensemble.significance import Difference
from competition.ensemble.tables import Row


def verdict(difference: Difference) -> str:
    """ "a gain" or "a loss" where two equally good classifiers differ this much in at most 5 % of cases, else "noise".

    Noise is the standard error and, where they were studied, the spread over other seeds; see `Difference.p_value`.
    """
    if not difference.value and not difference.noise:
        return "no difference"
    if not difference.is_significant:
        return "noise"
    return "a gain" if difference.value > 0 else "a loss"


def gain(difference: Difference) -> str:
    """+0.0031 ± 0.0012 (other seeds ± 0.0020), a gain (p = 0.008)"""
    if not difference.value and not difference.noise:
        return verdict(difference)
    seeds = f" (other seeds {plus_minus(difference.seeds)})" if difference.seeds else ""
    chance = difference.p_value
    p = "p < 0.001" if chance < 0.001 else f"p = {chance:.3f}" if chance < 0.1 else f"p = {chance:.2f}"
    return f"{difference.value:+.4f} {plus_minus(difference.error)}{seeds}, {verdict(difference)} ({p})"


def plus_minus(error: float) -> str:
    """± 0.0012; four decimals, or the first digit that is not 0: an error of 0 is that of two equal results."""
    if error >= 0.00005:
        return f"± {error:.4f}"
    return f"± {error:.0e}" if error else "± 0"


def seeds_line(spreads: Mapping[str, float], members: Sequence[str]) -> list[str]:
    """What the verdicts took into account of other seeds; nothing where no member was studied."""
    if not spreads:
        return []
    told = ", ".join(f"{name} {spread:.4f}" for name, spread in spreads.items())
    rest = ", ".join(name for name in members if name not in spreads)
    return [f"  spread over seeds (make noise): {told}" + (f"; not studied: {rest}" if rest else "")]


def views_lines(effects: Mapping[str, Difference], refused: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Per member what its views set right and spoilt on rows that took no part in choosing them, and what was refused."""
    lines = []
    for name, effect in effects.items():
        why = {reason: [v for v, r in refused[name].items() if r == reason] for reason in refused[name].values()}
        told = f"{effect.corrected} rows set right, {effect.corrupted} spoilt, {gain(effect)}"
        if not effect.value and not effect.changed:
            told = "no row changed"
        if why or told != "no row changed":
            left = [f"{reason}: {', '.join(views)}" for reason, views in why.items()]
            lines.append(f"  {name:<16} {'; '.join([told, *left])}")
    return ["  views against the plain one, honest", *lines] if lines else []


def blend_lines(metric: Metric, chain: Chain, scores: Mapping[str, Any], over: Mapping[str, Difference]) -> list[str]:
    lines = [f"{metric.name} on out-of-fold rows"]
    for name, single in scores["members"].items():
        views = ", ".join(f"{view} {share:.2f}" for view, share in chain.policies[name].items())
        weight = chain.blend.weights.get(name, 0.0)
        lines.append(
            f"  {name:<16} {single['score']:.4f} {plus_minus(single['standard_error'])}  weight {weight:.2f}; views {views}"
        )
    lines += [
        f"  {'blend':<16} {scores['chosen_on']:.4f}           on the rows it was chosen on ({how(chain)})",
        f"  {'optimistic' if scores.get('optimistic') else 'honest':<16} {scores['honest']:.4f} "
        f"{plus_minus(scores['standard_error'])}  on rows that "
        + ("chose hyperparameters" if scores.get("optimistic") else "took no part in the choice"),
    ]
    for name, difference in over.items():
        lines.append(f"  {'over ' + name:<22} {gain(difference)}")
    low, high = scores["leaderboard_band"]
    lines.append(
        f"  expected on {scores['test_rows']:,} test rows: {low:.4f} to {high:.4f} (95 % interval, if they are like the training rows)"
    )
    lines += [f"  {warning}" for warning in scores.get("small_classes", ())]
    return lines


def how(chain: Chain) -> str:
    """bagged, prior; with temperatures only where they were chosen"""
    calibration = ["temperatures"] if chain.calibration == "temperature" else []
    return ", ".join([*calibration, chain.blend.method, chain.decision.rule])


def diversity_lines(found: Diversity) -> list[str]:
    if len(found.names) < 2:
        return []
    lines = [
        f"  {'member':<16} {'alone':>7} {'worth':>8}  agreement / correlation of errors with " + ", ".join(found.names)
    ]
    for n, name in enumerate(found.names):
        pairs = zip(found.agreement[n], found.error_correlation[n], strict=True)
        told = "  ".join(f"{agreed:.3f}/{errors:.2f}" for agreed, errors in pairs)
        lines.append(f"  {name:<16} {found.score[n]:>7.4f} {found.worth[n]:>+8.4f}  {told}")
    return lines


def row_notes(result: HonestResult, inputs: EnsembleInputs) -> list[str]:
    """Notes if not all rows are scored, or not each by a chain fitted on all other folds."""
    notes, folds = [], len(inputs.predicted_folds)
    if result.is_optimistic:
        notes.append(
            "  OPTIMISTIC: rows of every fold took part in choosing the hyperparameters, so no row is left that took no part "
            "in any choice; all scores are of all rows. Tune on fewer folds (tune.folds) for honest scores"
        )
    elif inputs.tuned_folds:
        notes.append(
            f"  hyperparameters were chosen on held-out rows of folds {list(inputs.tuned_folds)}: "
            f"all scores are of the other {result.scored.sum():,} rows"
        )
    if result.blocks < folds:
        notes.append(
            f"  {folds} folds in {result.blocks} blocks (honest.blocks): each row is scored by a chain fitted without its "
            "block, hence without its fold"
        )
    return notes


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
        gains = [gain(row.over[name]) if name in row.over else "" for name in references]
        honest = f"{metric.display(row.honest.value):.4f} {plus_minus(row.honest.error)}"
        lines.append("| " + " | ".join([row.name, f"{metric.display(row.chosen_on):.4f}", honest, *gains]) + " |")
    return lines
