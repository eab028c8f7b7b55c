"""Tables of a blend: its gains over the baselines, the views, what each member is worth; of the report and of VERBOSE=1."""

from competition.ensemble.bootstrap import Difference
from competition.ensemble.chain import Chain
from competition.ensemble.external_check import doubts_of
from competition.ensemble.metrics import Metric
from competition.report.page import Section, Table, Text
from competition.report.terminal import Scores, best_members, gain, how, plain_rule, with_error

SOURCES = "blend/scores.json, blend/chain.json · make predict"


def blend_sections(scores: Scores, chain: Chain, metric: Metric) -> list[Section]:
    """The gains of the blend over its baselines with cautions, the views, and of several members what each is worth."""
    warnings = [Text(list(scores["small_classes"]))] if scores.get("small_classes") else []
    sections = [Section("blend", "Gains of the blend", SOURCES, [gains_table(scores, chain, metric), *warnings])]
    if any(len(policy) > 1 or scores["views"][name]["effect"]["value"] for name, policy in chain.policies.items()):
        sections.append(Section("views", "Views", SOURCES, [views_table(scores, chain, metric)]))
    if worth := worth_tables(scores, metric):
        title, sources = "What each member is worth", "blend/scores.json · make predict"
        sections.append(Section("worth", title, sources, worth))
    return sections


def gains_table(scores: Scores, chain: Chain, metric: Metric) -> Table:
    """The honest gains of the blend, each with its baseline and the baseline's score."""
    names = {"trivial": f"trivial: {scores['trivial']['name']}"}
    note = f"All on the same {scores['honest_rows']:,} rows. The trivial baseline looks at no row. "
    if len(scores["members"]) > 1:  # with one member the others are that member
        names |= {"equal": "equal weights of all members", "best": f"the best member: {best_members(scores)}"}
        if metric.ranks_rows:
            note += 'The baseline "best member" was chosen on the same rows, which favours it a little. '
        else:
            note += (
                'The baseline "best member" is, in each fold, the member that is best on the other folds, so it can differ from fold to '
                "fold and score less than the member that is best over all rows. "
            )
        own = " and fit a decision rule of their own, as the blend does" if metric.needs_labels else ""
        note += f"Baselines use the views of their members{own}; a member's own score is of its identity view only. "
    if (plain := plain_rule(chain, metric)) is not None:
        names["default_rule"] = f"the same blend with {plain}"
    note += "Gain or loss: two equally good models differ this much in at most 5 % of cases. Everything else is noise."
    honest, rows = with_error(scores["honest"], scores["standard_error"], scores["metric"]), []
    kind = "" if doubts_of(scores) else "honest "
    for key, name in names.items():
        of_baseline = with_error(scores[key]["score"], scores[key]["standard_error"], scores["metric"])
        difference = Difference(**scores[f"over_{key}"])
        row = {"baseline": name, "its score": of_baseline, f"the blend's {kind}score": honest}
        rows.append({**row, f"{kind}difference": gain(difference), **changed_rows(difference, metric.target)})
    return Table.of(rows, note=note, title=f"The blend ({how(chain, metric)}) against its baselines")


def changed_rows(difference: Difference, target: str) -> dict[str, str]:
    """How many rows are right and were wrong, and the reverse; the rows of a regression are neither."""
    if target == "regression":
        return {}
    return {"rows corrected": f"{difference.corrected:,}", "corrupted": f"{difference.corrupted:,}"}


def views_table(scores: Scores, chain: Chain, metric: Metric) -> Table:
    """The views of each member with their shares, and what they gain."""
    rows: list[dict[str, str]] = []
    gained = f"{'' if doubts_of(scores) else 'honest '}gain over the identity view"
    for name, policy in chain.policies.items():
        effect = Difference(**scores["views"][name]["effect"])
        views = ", ".join(f"{view} {share:.2f}" for view, share in policy.items())
        row = {"member": name, "views and their shares": views, gained: gain(effect)}
        rows.append({**row, **changed_rows(effect, metric.target)})
    note = (
        "The gain is that of the views chosen without each fold, which can differ from those shown, over the member's identity view, on "
        f"the same {scores['honest_rows']:,} rows."
    )
    return Table.of(rows, 3, note)


def worth_tables(scores: Scores, metric: Metric) -> list[Table]:
    """[what each member adds to the blend], [] with a single one."""
    diversity = scores["diversity"]
    similarity = {"multi": "share of equal labels", "regression": "correlation of the values"}  # see ensemble.compare
    names = diversity["names"]
    if len(names) < 2:
        return []
    rows = []
    for n, name in enumerate(names):
        others = [f"{agreed:.3f}" for agreed in diversity["agreement"][n]]
        worth = diversity["worth"][n]
        alone = f"{metric.display(diversity['score'][n]):.4f}"
        rows.append([name, alone, "–" if worth is None else f"{worth:+z.4f}", *others])
    note = (
        "Worth is what the blend loses without the member, the weights of the others in the same ratios. Alone and worth are without the "
        "decision rule, which is fitted to the whole blend, and of the rows that everything was chosen on, so both are optimistic. "
        f"Under each name: {similarity.get(metric.target, 'share of rows with the same most probable class')}. "
        "Two identical members have 1.000, and one is worth nothing."
    )
    return [Table(["member", "alone, with its views", "worth", *names], rows, note=note)]
