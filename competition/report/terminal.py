"""Results as lines of text for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from competition.config.errors import counted
from competition.ensemble.chain import Chain
from competition.ensemble.diversity import Diversity
from competition.ensemble.honest import HonestResult
from competition.ensemble.metrics import Metric
from competition.ensemble.significance import Difference
from competition.ensemble.tables import TableRow
from competition.workspace.ensemble_inputs import EnsembleInputs

Scores = Mapping[str, Any]  # the content of scores.json, or a part of it


def verdict(difference: Difference) -> str:
    """Return "a gain" or "a loss" if two equally good classifiers differ this much in at most 5 % of cases, else "noise".

    Noise is the standard error and, if measured, the spread over training seeds; see `Difference.p_value`.
    """
    if not difference.value and not difference.noise:
        return "no difference"
    if not difference.is_significant:
        return "noise"
    return "a gain" if difference.value > 0 else "a loss"


def gain(difference: Difference) -> str:
    """Format a difference: +0.0031 ± 0.0012 (other seeds ± 0.0020), a gain (p = 0.008)"""
    if not difference.value and not difference.noise:
        return verdict(difference)
    seeds = f" (other seeds {plus_minus(difference.seeds)})" if difference.seeds else ""
    p = difference.p_value
    p_text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
    return f"{difference.value:+.4f} {plus_minus(difference.error)}{seeds}, {verdict(difference)} ({p_text})"


def plus_minus(error: float) -> str:
    """Format a standard error: ± 0.0012, with four decimals or the first non-zero digit; 0 only for equal results."""
    if error >= 0.00005:
        return f"± {error:.4f}"
    return f"± {error:.0e}" if error else "± 0"


def with_error(score: float, error: float) -> str:
    """Format a score and its standard error: 0.9123 ± 0.0012"""
    return f"{score:.4f} {plus_minus(error)}"


def seeds_line(spreads: Mapping[str, float], members: Sequence[str]) -> list[str]:
    """The measured spreads over training seeds, which the verdicts include; empty if none was measured."""
    if not spreads:
        return []
    measured = ", ".join(f"{name} {spread:.4f}" for name, spread in spreads.items())
    unmeasured = ", ".join(name for name in members if name not in spreads)
    return [f"  spread over seeds (make noise): {measured}" + (f"; not measured: {unmeasured}" if unmeasured else "")]


def views_lines(effects: Mapping[str, Difference], rejected: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Per member the rows that its TTA policy fixed and broke, cross-fitted, and the rejected views with reasons."""
    lines = []
    for name, effect in effects.items():
        reasons = views_by_reason(rejected[name])
        # No row of a regression is right or wrong.
        counts = (
            f"{counted(effect.corrected, 'row')} fixed, {effect.corrupted} broken, "
            if effect.corrected + effect.corrupted
            else ""
        )
        text = counts + gain(effect)
        if not effect.value and not effect.changed:
            text = "no row changed"
        if reasons or text != "no row changed":
            lines.append(f"  {name:<16} {'; '.join([text, *reasons])}")
    return ["  TTA against the identity view, honest", *lines] if lines else []


def views_by_reason(rejected: Mapping[str, str]) -> list[str]:
    """ "harmful: flip_ud, crop_center" for each reason.  rejected: view -> why the policy does not use it."""
    views = {reason: [view for view, why in rejected.items() if why == reason] for reason in rejected.values()}
    return [f"{reason}: {', '.join(names)}" for reason, names in views.items()]


def blend_lines(metric: Metric, chain: Chain, scores: Scores, gains: Mapping[str, Difference]) -> list[str]:
    """Scores of the members and of the blend.  scores: as in scores.json.  gains: name of a baseline -> gain over it."""
    lines, trivial = [f"{metric.name} on out-of-fold rows"], scores["trivial"]
    lines.append(f"  {'trivial':<16} {with_error(trivial['score'], trivial['standard_error'])}  {trivial['name']}")
    for name, single in scores["members"].items():
        views = ", ".join(f"{view} {share:.2f}" for view, share in chain.policies[name].items())
        weight = chain.blend.weights.get(name, 0.0)
        lines.append(
            f"  {name:<16} {single['score']:.4f} {plus_minus(single['standard_error'])}  weight {weight:.2f}; views {views}"
            + ("; not better than the trivial baseline" if name in scores["no_better_members"] else "")
        )
    lines += [
        f"  {'blend':<16} {scores['chosen_on']:.4f}           on the rows it was chosen on ({how(chain)})",
        f"  {'optimistic' if scores.get('optimistic') else 'honest':<16} {scores['honest']:.4f} "
        f"{plus_minus(scores['standard_error'])}  on rows that "
        + ("chose hyperparameters" if scores.get("optimistic") else "took no part in the choice"),
    ]
    for name, difference in gains.items():
        lines.append(f"  {'over ' + name:<26} {gain(difference)}")
    lines += [f"  WARNING the blend is {words}" for words in no_better_than_trivial(scores)]
    if len(scores["best_members"]) > 1:
        lines.append(
            f"  best member: best on the other folds, {best_member_text(scores)}; this baseline scores {scores['best']['score']:.4f}"
        )
    if scores["leaderboard_band"]:
        low, high = scores["leaderboard_band"]
        lines.append(
            f"  expected on {counted(scores['test_rows'], 'test row')}: {low:.4f} to {high:.4f} (95 % interval, if they are like the "
            "training rows)"
        )
    lines += [f"  {warning}" for warning in scores.get("small_classes", ())]
    return lines


def no_better_than_trivial(scores: Scores) -> list[str]:
    """["not better than ..."] if the honest score is not above the trivial baseline's by more than noise, else [].

    scores: as in scores.json.
    """
    trivial, over = scores["trivial"], scores["over_trivial"]
    difference = over if isinstance(over, Difference) else Difference(**over)
    if difference.value > 0 and difference.is_significant:
        return []
    score = with_error(trivial["score"], trivial["standard_error"])
    return [f"not better than an answer that looks at no image: {trivial['name']} ({score})"]


def best_member_text(scores: Scores) -> str:
    """Which member is the baseline "best member", fold by fold."""
    members: Mapping[str, Sequence[int]] = scores["best_members"]
    if len(members) == 1:
        return next(iter(members))
    return " and ".join(f"{name} in {folds_text(folds)}" for name, folds in members.items())


def folds_text(folds: Sequence[int]) -> str:
    """Return "fold 0" or "folds 0, 1"."""
    return f"{'fold' if len(folds) == 1 else 'folds'} {', '.join(map(str, folds))}"


def how(chain: Chain) -> str:
    """Describe the selected candidate: "bagged, prior", or "temperatures, bagged, prior" if it is calibrated."""
    calibration = ["temperatures"] if chain.calibration == "temperature" else []
    rule = [] if chain.decision.rule == "none" else [chain.decision.rule]
    return ", ".join([*calibration, chain.blend.method, *rule])


def diversity_lines(diversity: Diversity) -> list[str]:
    """Score and contribution of each member, and its agreement with the others; empty for a single member."""
    if len(diversity.names) < 2:
        return []
    lines = [
        f"  {'member':<16} {'alone':>7} {'worth':>8}  agreement / correlation of errors with "
        + ", ".join(diversity.names)
    ]
    for n, name in enumerate(diversity.names):
        pairs = zip(diversity.agreement[n], diversity.error_correlation[n], strict=True)
        cells = "  ".join(f"{agreed:.3f}/{errors:.2f}" for agreed, errors in pairs)
        lines.append(f"  {name:<16} {diversity.score[n]:>7.4f} {diversity.worth[n]:>+8.4f}  {cells}")
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


def markdown(rows: Sequence[TableRow], metric: Metric, references: Sequence[str]) -> list[str]:
    """A Markdown table: name, score on the fitted rows, honest score with its standard error, honest gains."""
    head = ["", "on the rows it was chosen on", f"honest {metric.name}", *(f"honest gain over {n}" for n in references)]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        gains = [gain(row.over[name]) if name in row.over else "" for name in references]
        honest = with_error(metric.display(row.honest.value), row.honest.error)
        lines.append("| " + " | ".join([row.name, f"{metric.display(row.chosen_on):.4f}", honest, *gains]) + " |")
    return lines
