"""Tables of a blend: its gains over the baselines, the views, what each member is worth; of the report and of VERBOSE=1."""

import json
from pathlib import Path

from competition.ensemble.bootstrap import Difference
from competition.ensemble.chain import Chain
from competition.ensemble.external_check import is_doubted
from competition.ensemble.metrics import METRICS, Metric, metric_named
from competition.report.page import Section, Table, Text
from competition.report.terminal import (
    Scores,
    best_members,
    gain,
    how,
    with_error,
)

SOURCES = "blend/scores.json, blend/chain.json · make predict"


def blend_sections(scores: Scores, chain: Chain) -> list[Section]:
    """The gains of the blend over its baselines with cautions, the views, and of several members what each is worth."""
    warnings = [Text(list(scores["small_classes"]))] if scores.get("small_classes") else []
    sections = [
        Section("blend", "Gains of the blend", SOURCES, [gains_table(scores, chain), *warnings]),
        Section("views", "Views", SOURCES, [views_table(scores, chain)]),
    ]
    if worth := worth_tables(scores):
        title, sources = "What each member is worth", "blend/scores.json · make predict"
        sections.append(Section("worth", title, sources, worth))
    return sections


CORRECTED = "Corrected: rows that were wrong and are right; corrupted: rows that were right and are wrong."


def gains_table(scores: Scores, chain: Chain) -> Table:
    """The honest gains of the blend, each with its baseline and the baseline's score."""
    metric = METRICS.get(scores["metric"])
    rule = {"single": ", argmax", "multi": ", labels of 0.5 or more"}.get(metric.target, "") if metric else ", argmax"
    names = {
        "trivial": f"trivial: {scores['trivial']['name']}",
        "equal": f"equal weights of all members{rule}",
        "best": f"the best member: {best_members(scores)}",
    }
    is_regression = metric is not None and metric.target == "regression"  # its rows are neither right nor wrong
    count_names = () if is_regression else ("changed", "corrected", "corrupted")
    honest, rows = with_error(scores["honest"], scores["standard_error"], scores["metric"]), []
    for key in names if len(scores["members"]) > 1 else ["trivial"]:  # with one member the others are that member
        difference = scores[f"over_{key}"]
        of_baseline = with_error(scores[key]["score"], scores[key]["standard_error"], scores["metric"])
        counts = (f"{difference[count]:,}" for count in count_names)
        rows.append([names[key], of_baseline, honest, gain(Difference(**difference)), *counts])
    sentences = [f"All on the same {scores['honest_rows']:,} rows. The trivial baseline looks at no image."]
    if len(scores["members"]) > 1:
        sentences.append(
            'The baseline "best member" is, in each fold, the member that is best on the other folds, so it can differ from fold to '
            "fold and score less than the member that is best over all rows. Baselines use the views of their members, the members "
            "in the chart their identity view only."
        )
    sentences.append(
        "Gain or loss: two equally good models differ this much in at most 5 % of cases. Everything else is noise."
    )
    if count_names:
        sentences.append(CORRECTED)
    scored = ["the blend", "difference"] if is_doubted(scores) else ["the blend, honest", "honest difference"]
    columns = ["baseline", "its score", *scored]
    columns += [f"rows {count}" if count == "changed" else count for count in count_names]
    return Table(columns, rows, note=" ".join(sentences), title=f"The blend ({how(chain)}) against its baselines")


def views_table(scores: Scores, chain: Chain) -> Table:
    """The views of each member with their shares, what they gain, and the excluded views with reasons."""
    metric, rows = METRICS.get(scores["metric"]), []
    classified = metric is None or metric.target != "regression"
    for name, policy in chain.policies.items():
        choice = scores["views"][name]
        effect = Difference(**choice["effect"])
        views = ", ".join(f"{view} {share:.2f}" for view, share in policy.items())
        left_out: dict[str, list[str]] = {}  # reason -> views
        for view, reason in choice["left_out"].items():
            left_out.setdefault(reason, []).append(view)
        excluded = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in left_out.items())
        cells = [name, views, excluded or "none", gain(effect)]
        if classified:
            cells += [f"{effect.corrected:,}", f"{effect.corrupted:,}"]
        rows.append(cells)
    gained = f"{'' if is_doubted(scores) else 'honest '}gain over the identity view"
    columns = ["member", "views and their shares", "excluded views", gained]
    note = (
        f"The gain is that of the views chosen without each fold, which can differ from those shown, over the member's identity view, on "
        f"the same {scores['honest_rows']:,} rows."
    )
    if classified:
        columns += ["corrected", "corrupted"]
        note += f" {CORRECTED}"
    return Table(columns, rows, 3, note)


def worth_tables(scores: Scores) -> list[Table]:
    """[what each member adds to the blend], [] with a single one."""
    diversity, metric = scores["diversity"], metric_named(scores["metric"])
    names = diversity["names"]
    if len(names) < 2:
        return []
    rows = []
    for n, name in enumerate(names):
        correlations = ["–" if one is None else f"{one:.2f}" for one in diversity["error_correlation"][n]]
        others = [f"{agreed:.3f} / {one}" for agreed, one in zip(diversity["agreement"][n], correlations, strict=True)]
        worth = diversity["worth"][n]
        alone = f"{metric.display(diversity['score'][n]):.4f}"
        rows.append([name, alone, "–" if worth is None else f"{worth:+.4f}", *others])
    note = (
        "Alone and worth: on the rows everything was chosen on, so both are optimistic; worth is what the blend loses without the "
        "member. Under each name: share of rows with "
        "the same most probable class / correlation of the errors. Two identical members have 1.000 / 1.00, and one is worth nothing."
    )
    return [Table(["member", "alone, with its views", "worth", *names], rows, note=note)]


def ways_section(file: Path, metric: Metric) -> Section | None:
    """The result of `make list-blends`; None if it was not run."""
    if not file.is_file():
        return None
    result = json.loads(file.read_text(encoding="utf-8"))
    blocks = []
    for key, title in (("blends", "blend method"), ("policies", "views (policy.method), equal member weights")):
        if not (rows := result.get(key)):  # no member has a choice of views
            continue
        references = sorted({name for row in rows for name in row["over"]})
        cells = []
        for row in rows:
            honest = with_error(metric.display(row["honest"]["value"]), row["honest"]["error"], metric.name)
            # A row that is a reference itself has no gain over it.
            gains = [gain(Difference(**row["over"][n])) if n in row["over"] else "no difference" for n in references]
            cells.append([row["name"], f"{metric.display(row['chosen_on']):.4f}", honest, *gains])
        columns = [
            title,
            "while choosing",
            f"honest {metric.name}",
            *(f"honest gain over {'the best member' if name == 'best' else name}" for name in references),
        ]
        note = (
            "While choosing: on the rows that it was chosen on, optimistic, so a higher honest score is chance. Honest and its gains: "
            "cross-fitted, on the same rows."
        )
        blocks.append(Table(columns, cells, note=note))
    lines = [
        "State of the last `make list-blends`; later training is not included, so its rows can differ from those above."
    ]
    return Section("ways", "All blend methods", "list_blends.json · make list-blends", [*blocks, Text(lines)])
