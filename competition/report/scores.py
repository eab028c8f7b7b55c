"""The report's sections on scores, views, the worth of each member and `make list-blends`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.config.errors import counted
from competition.ensemble.bootstrap import Difference
from competition.ensemble.chain import Chain
from competition.ensemble.metrics import METRICS, Metric
from competition.report.caveats import has_shift
from competition.report.charts import Point, score_chart
from competition.report.page import Charts, Figure, Section, Table, Text
from competition.report.terminal import (
    Scores,
    best_member_text,
    folds_text,
    gain,
    how,
    no_better_than_trivial,
    views_by_reason,
    with_error,
)
from competition.submission import ledger


@dataclass(frozen=True)
class ScoreOnTest:
    """A score of the blend's submission on test rows."""

    name: str  # public | private
    score: float
    source: str


def figures(scores: Scores, test_scores: Sequence[ScoreOnTest]) -> list[Figure]:
    """The figures at the top of the page: honest score, score of the choice, expected and actual leaderboard scores."""
    band = scores["leaderboard_band"]  # None without test images
    kind, rows = "honest", "took no part in the choice"
    if scores.get("optimistic"):
        kind, rows = "optimistic", "also chose hyperparameters (there are no others)"
    elif scores.get("tuned_folds"):
        rows += f"; those of {folds_text(scores['tuned_folds'])} chose hyperparameters"
    honest, note = (
        with_error(scores["honest"], scores["standard_error"]),
        f"on {counted(scores['honest_rows'], 'row')} that {rows}",
    )
    trivial = scores["trivial"]
    baseline = with_error(trivial["score"], trivial["standard_error"])
    result = [
        Figure(f"{kind} {scores['metric']}", honest, "; ".join([note, *no_better_than_trivial(scores)]), main=True),
        Figure("chosen on", f"{scores['chosen_on']:.4f}", "on the rows it was chosen on: optimistic"),
        Figure("trivial baseline", baseline, f"{trivial['name']}: looks at no image"),
    ]
    if band:
        note = f"95 % interval, for {counted(scores['test_rows'], 'test row')} like the training rows"
        result.append(Figure("expected leaderboard", f"{band[0]:.4f} to {band[1]:.4f}", note))
    return [*result, *(Figure(one.name, f"{one.score:.5f}", one.source) for one in test_scores)]


def scores_on_test(row: ledger.Row | None, grades: Path) -> list[ScoreOnTest]:
    """What Kaggle and `make grade` answered.  row: of the blend's submission.  grades: grades.json."""
    if row is None:
        return []
    kaggle = {"public": row.public_score, "private": row.private_score}
    result = [
        ScoreOnTest(name, score, "Kaggle's score, on test rows") for name, score in kaggle.items() if score is not None
    ]
    if grades.is_file():
        grade = json.loads(grades.read_text(encoding="utf-8")).get(row.entry.file, {})
        result += [
            ScoreOnTest(name, grade[name], _graded(grade, name))
            for name in ("public", "private")
            if grade.get(f"{name}_rows") and grade.get(name) is not None
        ]
    return result


def _graded(grade: Mapping[str, Any], part: str) -> str:
    """Where a score of grades.json comes from, and the trivial baseline on the same rows, where it is known."""
    trivial = grade.get(f"{part}_trivial")
    beside = "" if trivial is None else f"; trivial baseline {trivial:.4f}"
    return f"make grade, on {counted(grade[f'{part}_rows'], 'test row')}{beside}"


def blend_section(scores: Scores, chain: Chain, test_scores: Sequence[ScoreOnTest]) -> Section:
    """Scores of members, baselines and blend, all on the same rows; those on test rows are marked."""
    points = score_points(scores, chain, test_scores)
    band = None if has_shift(scores) else scores["leaderboard_band"] and tuple(scores["leaderboard_band"])
    ends = [end for one in points for end in (one.value - (one.error or 0), one.value + (one.error or 0))]
    ends += band or ()
    note, trivial, width = score_note(scores, points), scores["trivial"], max(ends) - min(ends)
    if min(ends) - width <= trivial["score"] <= max(ends) + width:
        is_honest = not scores.get("optimistic")
        points.insert(0, Point("trivial baseline", trivial["score"], trivial["standard_error"], is_honest, "baseline"))
    else:
        score = with_error(trivial["score"], trivial["standard_error"])
        note += f" The trivial baseline ({trivial['name']}) scores {score}, far outside of this chart."
    charts = Charts(score_chart(points, band, scores["metric"]), note)
    warnings = [Text(list(scores["small_classes"]))] if scores.get("small_classes") else []
    sources = "blend/scores.json, blend/chain.json · make predict"
    return Section("blend", "Scores", sources, [charts, gains_table(scores, chain), *warnings])


def score_points(scores: Scores, chain: Chain, test_scores: Sequence[ScoreOnTest]) -> list[Point]:
    """The rows of the score chart: members, baselines, the blend, and scores of test rows if there are any."""
    is_honest, weights = not scores.get("optimistic"), chain.blend.weights
    is_single = len(scores["members"]) == 1  # the blend, and what it is compared with, is that member
    notes = {name: f"weight {weights.get(name, 0.0):.2f}" for name in scores["members"]}
    singles = {**scores["members"]}
    for key, name in baselines_of(scores)[1:]:
        singles[name], notes[name] = scores[key], "baseline"
    points = [
        Point(name, single["score"], single["standard_error"], is_honest, notes[name])
        for name, single in singles.items()
        if not (is_single and name in scores["members"] and single["score"] == scores["honest"])
    ]
    if not is_single or scores["chosen_on"] != scores["honest"]:
        points.append(Point("blend, chosen on", scores["chosen_on"], None, False))
    blend_name = "blend, honest" if is_honest else "blend, optimistic"
    note = f"{next(iter(scores['members']))} alone" if is_single else ""
    points.append(Point(blend_name, scores["honest"], scores["standard_error"], is_honest, note))
    for one in test_scores:
        title = f"{one.name} leaderboard" if one.source.startswith("Kaggle") else f"{one.name}, make grade"
        points.append(Point(title, one.score, None, True, "other rows: test", test=True))
    return points


def baselines_of(scores: Scores) -> list[tuple[str, str]]:
    """(key in scores.json, name) of the baselines; with one member equal weights and the best member are that member."""
    of_members = [("equal", "equal weights"), ("best", "best on the other folds")]
    return [("trivial", "trivial baseline"), *(of_members if len(scores["members"]) > 1 else [])]


def has_right_rows(scores: Scores) -> bool:
    """False for a regression, whose rows are neither right nor wrong."""
    metric = METRICS.get(scores["metric"])
    return metric is None or metric.target != "regression"


def score_note(scores: Scores, points: Sequence[Point]) -> str:
    """What the marks of the score chart mean: those that it has, and no others."""
    rows, tuned = f"{counted(scores['honest_rows'], 'out-of-fold row')}", scores.get("tuned_folds")
    if scores.get("optimistic"):
        sentences = [f"Circles: the same {rows}. All are hollow, because every row chose hyperparameters: optimistic."]
    else:
        without = f"; those of {folds_text(tuned)} chose hyperparameters and are left out" if tuned else ""
        sentences = [f"Circles: the same {rows}{without}."]
    if any(point.test for point in points):
        sentences.append("Diamonds: test rows, not comparable row by row.")
    sentences.append(
        "Bars are one standard error. A member's score is that of its identity view, for which nothing was chosen."
    )
    if not scores.get("optimistic") and not all(point.honest for point in points):
        sentences.append(
            "The hollow point is the score on the rows everything was chosen on: optimistic. Quote the filled one below it."
        )
    return " ".join(sentences)


def gains_table(scores: Scores, chain: Chain) -> Table:
    """The honest gains of the blend, each with its baseline and the baseline's score."""
    metric = METRICS.get(scores["metric"])
    rule = {"single": ", argmax", "multi": ", labels of 0.5 or more"}.get(metric.target, "") if metric else ", argmax"
    names = {
        "trivial": f"trivial: {scores['trivial']['name']}",
        "equal": f"equal weights of all members{rule}",
        "best": f"the best member: {best_member_text(scores)}",
    }
    count_names = ("changed", "corrected", "corrupted") if has_right_rows(scores) else ()
    honest, rows = with_error(scores["honest"], scores["standard_error"]), []
    for key, _ in baselines_of(scores):
        difference = scores[f"over_{key}"]
        of_baseline = with_error(scores[key]["score"], scores[key]["standard_error"])
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
    columns = ["baseline", "its score", "the blend, honest", "honest difference"]
    columns += [f"rows {count}" if count == "changed" else count for count in count_names]
    return Table(columns, rows, note=" ".join(sentences), title=f"The blend ({how(chain)}) against its baselines")


def views_section(scores: Scores, chain: Chain) -> Section:
    """The TTA policy of each member, and its gain over the member's identity view."""
    classified = has_right_rows(scores)
    rows = []
    for name, policy in chain.policies.items():
        choice = scores["views"][name]
        effect = Difference(**choice["effect"])
        views = ", ".join(f"{view} {share:.2f}" for view, share in policy.items())
        cells = [name, views, "; ".join(views_by_reason(choice["left_out"])) or "none"]
        cells.append(gain(effect))
        if classified:
            cells += [f"{effect.corrected:,}", f"{effect.corrupted:,}", f"{chain.temperatures[name]:.2f}"]
        rows.append(cells)
    columns = ["member", "views and their shares", "excluded views", "honest gain over the identity view"]
    note = (
        f"The gain is over the member's identity view, on the same {scores['honest_rows']:,} rows, which took no part in choosing the "
        "views."
    )
    if classified:
        columns += ["corrected", "corrupted", "temperature"]
        note += " A temperature below 1 means that the member was underconfident, above 1 that it was overconfident."
    sources = "blend/chain.json, blend/scores.json · make predict"
    return Section("views", "Views", sources, [Table(columns, rows, 3, note)])


def worth_section(diversity: Scores) -> Section | None:
    """What each member adds to the blend.  diversity: an ensemble.diversity.Diversity as read from JSON."""
    names = diversity["names"]
    if len(names) < 2:
        return None
    rows = []
    for n, name in enumerate(names):
        correlations = ["–" if one is None else f"{one:.2f}" for one in diversity["error_correlation"][n]]
        others = [f"{agreed:.3f} / {one}" for agreed, one in zip(diversity["agreement"][n], correlations, strict=True)]
        worth = diversity["worth"][n]
        rows.append([name, f"{diversity['score'][n]:.4f}", "–" if worth is None else f"{worth:+.4f}", *others])
    note = (
        "Alone and worth: on the rows everything was chosen on, so both are optimistic; worth is what the blend loses without the "
        "member. Under each name: share of rows with "
        "the same most probable class / correlation of the errors. Two identical members have 1.000 / 1.00, and one is worth nothing."
    )
    table = Table(["member", "alone, with its TTA policy", "worth", *names], rows, note=note)
    return Section("worth", "What each member is worth", "blend/scores.json · make predict", [table])


def ways_section(file: Path, metric: Metric) -> Section | None:
    """The result of `make list-blends`; None if it was not run."""
    if not file.is_file():
        return None
    result = json.loads(file.read_text(encoding="utf-8"))
    blocks = []
    for key, title in (("blends", "blend method"), ("policies", "TTA policy, equal member weights")):
        rows = result.get(key, [])
        references = sorted({name for row in rows for name in row["over"]})
        cells = []
        for row in rows:
            honest = with_error(metric.display(row["honest"]["value"]), row["honest"]["error"])
            gains = [gain(Difference(**row["over"][n])) if n in row["over"] else "" for n in references]
            cells.append([row["name"], f"{metric.display(row['chosen_on']):.4f}", honest, *gains])
        columns = [title, "chosen on", f"honest {metric.name}", *(f"honest gain over {name}" for name in references)]
        note = "Chosen on: optimistic. Honest and its gains: cross-fitted, on the same rows."
        blocks.append(Table(columns, cells, note=note))
    lines = [
        "State of the last `make list-blends`; later training is not included, so its rows can differ from those above."
    ]
    return Section("ways", "All blend methods", "list_blends.json · make list-blends", [*blocks, Text(lines)])
