"""Results as lines of text for the terminal."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.config.errors import counted
from competition.ensemble.chain import Chain
from competition.ensemble.metrics import DEFAULT_RULES, Metric, metric_named, score_range
from competition.ensemble.significance import Difference
from competition.prepare.prepared import Prepared
from competition.report.stored_blends import blend_of
from competition.submission.ledger import Entry
from competition.workspace.dependencies import fold_names
from competition.workspace.scores import trivial_text

Scores = Mapping[str, Any]  # the content of scores.json, or a part of it
SUMMARY_COLUMNS = ("weight", "views and their gain")  # after the member and its score
TUNED = " †"
TUNED_NOTE = "† rows that chose the run's hyperparameters are among them: optimistic."


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
    value, error = number(difference.value, signed=True), plus_minus(difference.error, difference.value)
    return f"{value} {error}{seeds}, {verdict(difference)} ({p_text})"


def number(value: float, size: float | None = None, signed: bool = False) -> str:
    """Format a score: 0.9123, 12.346 or 14,729: four decimals, fewer where five digits say enough.

    size: of the value that decides how many; None = this one.
    """
    decimals = 4 - sum(abs(value if size is None else size) >= limit for limit in (10, 100, 1_000, 10_000))
    return f"{value:{'+' if signed else ''},.{decimals}f}"


def plus_minus(error: float, size: float = 0.0) -> str:
    """Format a standard error: ± 0.0012, with four decimals or the first non-zero digit; 0 only for equal results.

    size: of the value beside it, which decides how many decimals a large one has.
    """
    if error >= 0.00005:
        return f"± {number(error, max(abs(size), error))}"
    return f"± {error:.0e}" if error > 1e-12 else "± 0"  # below: rounding of equal results


def with_error(score: float, error: float, metric: str = "") -> str:
    """Format a score and its standard error: 0.9123 ± 0.0012, or 1.0000 ± 0.1188 (at most 1) at the end of the metric's range.

    metric: its name; "" and a metric of the user's have no known range.
    """
    lowest, highest = score_range(metric)
    limits = [f"at least {lowest:g}"] if score - error < lowest else []
    limits += [f"at most {highest:g}"] if score + error > highest else []
    # Few rows, or hardly a mistake: the score cannot be as far from the estimate on both sides as the error says.
    note = f" ({', '.join(limits)})" if limits else ""
    return f"{number(score)} {plus_minus(error, score)}{note}"


def seeds_line(spreads: Mapping[str, float], members: Iterable[str]) -> list[str]:
    """The measured spreads over training seeds, which the verdicts include; empty if none was measured."""
    if not spreads:
        return []
    measured = ", ".join(f"{name} {spread:.4f}" for name, spread in spreads.items())
    unmeasured = ", ".join(name for name in members if name not in spreads)
    return [f"  spread over seeds (make noise): {measured}" + (f"; not measured: {unmeasured}" if unmeasured else "")]


def summary_rows(scores: Scores, chain: Chain, metric: Metric) -> list[list[str]]:
    """Rows of SUMMARY_COLUMNS: each member, of several the best one and the blend, the trivial baseline.

    scores: as in scores.json.
    """
    rows, method, over_plain_rule = [], how(chain, metric), gain_of_rule(scores, chain, metric)
    for name, single in scores["members"].items():
        policy, effect = chain.policies[name], Difference(**scores["views"][name]["effect"])
        views = ", ".join(f"{view} {share:.2f}" if share < 1 else view for view, share in policy.items())
        # Identity alone gains nothing over itself: the difference is of the views chosen without each fold.
        chosen = f"; chosen in the folds: {gain(effect)}" if set(policy) == {"identity"} else f" ({gain(effect)})"
        notes = [f"{views}{chosen}" if effect.value else views]
        notes += ["not better than the trivial baseline"] if name in scores["no_better_members"] else []
        error = with_error(single["score"], single["standard_error"], scores["metric"])
        rows.append([name, error, f"{chain.blend.shares.get(name, 0.0):.2f}", "; ".join(notes)])
    if len(rows) > 1:
        # Its score is not that of the member's own row, which has the identity view and no choice.
        error = with_error(scores["best"]["score"], scores["best"]["standard_error"], scores["metric"])
        own = "with views and decision rule" if metric.needs_labels else "with views"
        chosen = f"{own}; chosen on {'all rows' if metric.ranks_rows else 'the other folds'}: {best_members(scores)}"
        rows.append(["best member", error, "", chosen])
        error = with_error(scores["honest"], scores["standard_error"], scores["metric"])
        over_best = f"over the best member: {gain(Difference(**scores['over_best']))}"
        rows.append(["blend", error, "", "; ".join([method, over_best, *over_plain_rule])])
    elif scores["honest"] != next(iter(scores["members"].values()))["score"]:
        error = with_error(scores["honest"], scores["standard_error"], scores["metric"])
        rows.append(["with its views", error, "", "; ".join([method, *over_plain_rule])])
    trivial = scores["trivial"]
    error = with_error(trivial["score"], trivial["standard_error"], scores["metric"])
    return [*rows, ["trivial", error, "", trivial["name"]]]


def gain_of_rule(scores: Scores, chain: Chain, metric: Metric) -> list[str]:
    """[what prior correction or thresholds gain over the plain decision rule], [] if the blend has that one.  scores: as in scores.json."""
    if (plain := plain_rule(chain, metric)) is None:
        return []
    return [f"its decision rule over {plain}: {gain(Difference(**scores['over_default_rule']))}"]


def plain_rule(chain: Chain, metric: Metric) -> str | None:
    """The default decision rule of the metric, None if the chain has that one, or if the metric scores probabilities or numbers."""
    default = DEFAULT_RULES[metric.target]
    if not metric.needs_labels or chain.decision.rule == default:
        return None
    return "labels of 0.5 or more" if default == "half" else default


def best_members(scores: Scores) -> str:
    """The best member of each scored fold, chosen on the other folds: "cnn", or "cnn in folds 2, 3 and small in fold 4".

    scores: as in scores.json.
    """
    unscored = () if scores["optimistic"] else scores["tuned_folds"]
    of_scored = {
        name: [fold for fold in folds if fold not in unscored] for name, folds in scores["best_members"].items()
    }
    of_scored = {name: folds for name, folds in of_scored.items() if folds}
    if len(of_scored) == 1:
        return next(iter(of_scored))
    return " and ".join(f"{name} in {fold_names(folds)}" for name, folds in of_scored.items())


def no_better_than_trivial(scores: Scores) -> list[str]:
    """["not better than ..."] if the honest score is not above the trivial baseline's by more than noise, else [].

    scores: as in scores.json.
    """
    trivial, over = scores["trivial"], scores["over_trivial"]
    difference = over if isinstance(over, Difference) else Difference(**over)
    if difference.value > 0 and difference.is_significant:
        return []
    score = with_error(trivial["score"], trivial["standard_error"], scores["metric"])
    return [f"not better than an answer that looks at no row: {trivial['name']} ({score})"]


def gain_of_equal_weights(scores: Scores) -> Difference | None:
    """What equal weights of all members are better by, if it is more than noise; else None.  scores: as in scores.json."""
    if len(scores["members"]) < 2:
        return None
    over = Difference(**scores["over_equal"])
    return replace(over, value=-over.value) if over.value < 0 and over.is_significant else None


def baseline_text(prepared: Prepared, blends: Path, entry: Entry, score: float | None = None) -> str:
    """The trivial baseline on the rows of a submission's honest score, or on all training rows if its blend is no longer stored.

    blends: the folder of the stored blends.  score: as of `trivial_text`.
    """
    stored = blend_of(blends, entry)
    if stored is None:
        return trivial_text(prepared, score=score)
    scores = json.loads((stored / "scores.json").read_text(encoding="utf-8"))
    trivial, sign = scores["trivial"], metric_named(scores["metric"], prepared.plugins).sign
    text = with_error(trivial["score"], trivial["standard_error"], scores["metric"])
    beaten = "" if score is None or sign * score > sign * trivial["score"] else ", NOT BEATEN"
    rows = f"the {counted(entry.oof_rows, 'row')} of {entry.digest[:8]}'s honest score"
    return f"the trivial baseline ({trivial['name']}) scores {text}{beaten} on {rows}"


def how(chain: Chain, metric: Metric) -> str:
    """Describe the selected candidate: "bagged, prior 0.35" (the exponent); probabilities and numbers need no decision rule."""
    method, rule = chain.blend.method, chain.decision.rule
    if rule == "none" or not metric.needs_labels:
        return method
    return f"{method}, prior {chain.decision.tau:.2f}" if rule == "prior" else f"{method}, {rule}"
