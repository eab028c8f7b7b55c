"""The report's first figures and the chart of scores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.config.errors import counted
from competition.ensemble.chain import Chain
from competition.report.blend_tables import baselines_of
from competition.report.caveats import has_shift
from competition.report.charts import Point, score_chart
from competition.report.page import Charts, Figure
from competition.report.terminal import (
    Scores,
    folds_text,
    no_better_than_trivial,
    number,
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
    """The figures at the top of the page: honest score, trivial baseline, expected and actual leaderboard scores."""
    band = scores["leaderboard_band"]  # None without test images
    kind, rows = "honest", "took no part in the choice"
    if scores.get("optimistic"):
        kind, rows = "optimistic", "also chose hyperparameters (there are no others)"
    elif scores.get("tuned_folds"):
        rows += f"; those of {folds_text(scores['tuned_folds'])} chose hyperparameters"
    honest, note = (
        with_error(scores["honest"], scores["standard_error"], scores["metric"]),
        f"on {counted(scores['honest_rows'], 'row')} that {rows}",
    )
    trivial = scores["trivial"]
    baseline = with_error(trivial["score"], trivial["standard_error"], scores["metric"])
    result = [
        Figure(f"{kind} {scores['metric']}", honest, "; ".join([note, *no_better_than_trivial(scores)]), main=True),
        Figure("trivial baseline", baseline, f"{trivial['name']}: looks at no image"),
    ]
    if band:
        note = f"95 % interval, for {counted(scores['test_rows'], 'test row')} like the training rows"
        result.append(Figure("expected leaderboard", f"{number(band[0], band[1])} to {number(band[1])}", note))
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


def score_charts(scores: Scores, chain: Chain, test_scores: Sequence[ScoreOnTest]) -> Charts:
    """Scores of members, baselines and blend, all on the same rows; those on test rows are marked."""
    points = score_points(scores, chain, test_scores)
    band = None if has_shift(scores) else scores["leaderboard_band"] and tuple(scores["leaderboard_band"])
    ends = [end for one in points for end in (one.value - (one.error or 0), one.value + (one.error or 0))]
    ends += band or ()
    note, trivial, width = score_note(scores, points), scores["trivial"], max(ends) - min(ends)
    if min(ends) - width <= trivial["score"] <= max(ends) + width:
        is_honest = not scores.get("optimistic")
        points.insert(0, Point("trivial baseline", trivial["score"], trivial["standard_error"], is_honest))
    else:
        score = with_error(trivial["score"], trivial["standard_error"], scores["metric"])
        note += f" The trivial baseline ({trivial['name']}) scores {score}, far outside of this chart."
    return Charts(score_chart(points, band, scores["metric"]), note)


def score_points(scores: Scores, chain: Chain, test_scores: Sequence[ScoreOnTest]) -> list[Point]:
    """The rows of the score chart: members, baselines, the blend, and scores of test rows if there are any."""
    is_honest, weights = not scores.get("optimistic"), chain.blend.shares
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
        points.append(Point("blend, while choosing", scores["chosen_on"], None, False))
    blend_name = "blend, honest" if is_honest else "blend, optimistic"
    note = f"{next(iter(scores['members']))} alone" if is_single else ""
    points.append(Point(blend_name, scores["honest"], scores["standard_error"], is_honest, note))
    for one in test_scores:
        title = f"{one.name} leaderboard" if one.source.startswith("Kaggle") else f"{one.name}, make grade"
        points.append(Point(title, one.score, None, True, "other rows: test", test=True))
    return points


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
