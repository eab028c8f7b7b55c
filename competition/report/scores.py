"""The report's sections on what was reached: scores, views, what each member is worth, every way to blend, the ledger."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from competition.ensemble.bootstrap import Difference
from competition.ensemble.chain import Chain
from competition.ensemble.metrics import Metric
from competition.report.charts import Point, score_chart
from competition.report.page import Charts, Figure, Section, Table, Text
from competition.report.terminal import gain, how, plus_minus
from competition.submission import ledger


def figures(scores: Mapping[str, Any], row: ledger.Row | None) -> list[Figure]:
    """The large figures: what may be quoted, what flatters, what to expect, what came."""
    low, high = scores["leaderboard_band"]
    found = [
        Figure(
            f"{'optimistic' if scores.get('optimistic') else 'honest'} {scores['metric']}",
            f"{scores['honest']:.4f} {plus_minus(scores['standard_error'])}",
            f"on {scores['honest_rows']:,} rows that "
            + (
                "chose hyperparameters, for want of others"
                if scores.get("optimistic")
                else "took no part in the choice"
            ),
            main=True,
        ),
        Figure("chosen on", f"{scores['chosen_on']:.4f}", "on the rows it was chosen on: flatters"),
        Figure(
            "expected leaderboard",
            f"{low:.4f} to {high:.4f}",
            f"95 % interval, for {scores['test_rows']:,} test rows like the training rows",
        ),
    ]
    if row is not None and row.public_score is not None:
        found.append(Figure("public", f"{row.public_score:.5f}", "Kaggle's, by the ledger"))
    if row is not None and row.private_score is not None:
        found.append(Figure("private", f"{row.private_score:.5f}", "Kaggle's, by the ledger"))
    return found


def blend_section(scores: Mapping[str, Any], chain: Chain, row: ledger.Row | None) -> Section:
    weights = chain.blend.weights
    points = [
        Point(name, one["score"], one["standard_error"], True, f"weight {weights.get(name, 0.0):.2f}")
        for name, one in scores["members"].items()
    ]
    if equal := scores.get("equal"):
        points.append(Point("equal weights", equal["score"], equal["standard_error"], True))
    points += [
        Point("blend, chosen on", scores["chosen_on"], None, False),
        Point(
            "blend, optimistic" if scores.get("optimistic") else "blend, honest",
            scores["honest"],
            scores["standard_error"],
            True,
        ),
    ]
    if row is not None:
        came = {"public leaderboard": row.public_score, "private leaderboard": row.private_score}
        points += [Point(name, score, None, True) for name, score in came.items() if score is not None]
    over = {"over equal weights": scores["over_equal"], "over the best member": scores["over_best"]}
    return Section(
        "blend",
        "Scores",
        "blend/scores.json, blend/chain.json · make predict",
        [
            Charts(
                [score_chart(points, tuple(scores["leaderboard_band"]), scores["metric"])],
                "Bars are one standard error. A member stands here by its plain view, for which nothing was chosen. The hollow "
                "point is on the rows everything was chosen on, and flatters; the filled one below it may be quoted.",
            ),
            Table(
                [f"the blend ({how(chain)})", "honest difference", "rows changed", "corrected", "corrupted"],
                [
                    [name, gain(Difference(**d)), f"{d['changed']:,}", f"{d['corrected']:,}", f"{d['corrupted']:,}"]
                    for name, d in over.items()
                ],
                note="A gain or a loss: two equally good classifiers differ this much in at most 5 % of cases. All else is noise.",
            ),
            *([Text(list(scores["small_classes"]))] if scores.get("small_classes") else []),
        ],
    )


def views_section(scores: Mapping[str, Any], chain: Chain) -> Section:
    effects = scores.get("views", {})
    rows = []
    for name, policy in chain.policies.items():
        told = effects.get(name, {})
        left = told.get("left_out", {})
        reasons = {why: [view for view, reason in left.items() if reason == why] for why in left.values()}
        effect = Difference(**told["effect"]) if told.get("effect") else None
        rows.append(
            [
                name,
                ", ".join(f"{view} {share:.2f}" for view, share in policy.items()),
                "; ".join(f"{why}: {', '.join(views)}" for why, views in reasons.items()) or "none",
                gain(effect) if effect else "not known",
                f"{effect.corrected:,}" if effect else "?",
                f"{effect.corrupted:,}" if effect else "?",
                f"{chain.temperatures[name]:.2f}",
            ]
        )
    columns = [
        "member",
        "views and their shares",
        "left out",
        "honest gain over the plain view",
        "set right",
        "spoilt",
        "temperature",
    ]
    note = (
        "The gain is on rows that took no part in choosing the views. A temperature below 1 says that the member was not sure "
        "enough, above 1 that it was too sure."
    )
    return Section(
        "views", "Views", "blend/chain.json, blend/scores.json · make predict", [Table(columns, rows, 3, note)]
    )


def worth_section(found: Mapping[str, Any]) -> Section | None:
    """found: an ensemble.diversity.Diversity as JSON has it."""
    names = found["names"]
    if len(names) < 2:
        return None
    rows = [
        [name, f"{found['score'][n]:.4f}", _or_dash(found["worth"][n], "+.4f")]
        + [
            f"{agreed:.3f} / {_or_dash(errors, '.2f')}"
            for agreed, errors in zip(found["agreement"][n], found["error_correlation"][n], strict=True)
        ]
        for n, name in enumerate(names)
    ]
    note = (
        "Worth: what the blend loses without the member, on the rows everything was chosen on. Under each name: share of rows with "
        "the same most probable class / correlation of the errors. Two clones have 1.000 / 1.00, and the second is worth nothing."
    )
    table = Table(["member", "alone, with its views", "worth", *names], rows, note=note)
    return Section("worth", "What each member is worth", "blend/scores.json · make predict", [table])


def ways_section(file: Path, metric: Metric) -> Section | None:
    """What `make table` found, where it was asked for."""
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    blocks = []
    for key, title in (("blends", "way to blend"), ("policies", "use of views, members weighed equally")):
        rows = found.get(key, [])
        references = sorted({name for row in rows for name in row["over"]})
        blocks.append(
            Table(
                [title, "chosen on", f"honest {metric.name}", *(f"honest gain over {name}" for name in references)],
                [
                    [
                        row["name"],
                        f"{metric.display(row['chosen_on']):.4f}",
                        f"{metric.display(row['honest']['value']):.4f} {plus_minus(row['honest']['error'])}",
                        *(gain(Difference(**row["over"][n])) if n in row["over"] else "" for n in references),
                    ]
                    for row in rows
                ],
            )
        )
    lines = ["As they were when `make table` last ran; it does not follow later training by itself."]
    return Section("ways", "Every way to blend", "table.json · make table", [*blocks, Text(lines)])


def ledger_section(found: Sequence[ledger.Row], public_share: float, looks: int) -> Section | None:
    if not found:
        return None
    table = ledger.table(found, public_share)
    blocks: list[Table | Text] = [
        Table(
            list(table[0]),
            [list(line.values()) for line in reversed(table)],
            3,
            "cv: on the rows the blend was chosen on. gap: public minus honest. noise: 95 % interval of the gap by "
            f"chance, if {public_share:.0%} of the test rows count (kaggle.public_share).",
        )
    ]
    if looks:
        opened = f"The private solution was opened {looks} time{'s' if looks != 1 else ''} (make grade); "
        blocks.append(Text([opened + "a score that is looked at often is no estimate any more."]))
    return Section("ledger", "Submissions", "submissions/ledger.jsonl · make submit, make submissions", blocks)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None or not np.isfinite(value) else format(value, form)
