"""The report's head and first screen: figures, the result in one sentence, the scores, the wrong rows and the worst classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from competition.config.errors import counted
from competition.ensemble.chain import Chain
from competition.ensemble.external_check import NOT_OUT_OF_FOLD, doubts_of, doubts_of_folds
from competition.input_pipeline.decoded_cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.caveats import without_expectation
from competition.report.charts import Point, score_chart
from competition.report.classes import HonestRows
from competition.report.labels_and_values import glance_blocks
from competition.report.page import Charts, Figure, Section, Text
from competition.report.terminal import Scores, no_better_than_trivial, number, with_error
from competition.submission import ledger
from competition.workspace.dependencies import fold_names


@dataclass(frozen=True)
class ScoreOnTest:
    """A score of the blend's submission on test rows."""

    name: str  # public | private
    score: float
    source: str


def verdict(scores: Scores, is_repeated: bool = False) -> str:
    """The result in one sentence.  is_repeated: the same rows have scored other blends, so one may have been chosen by them."""
    score = f"{scores['metric']} {with_error(scores['honest'], scores['standard_error'], scores['metric'])}"
    if useless := no_better_than_trivial(scores):
        return f"{score}: {useless[0]}."
    trivial = number(scores["trivial"]["score"])
    if any(NOT_OUT_OF_FOLD in note for note in scores.get("notes", ())):
        return f"{score} is not honest, if the models of a member were trained on these rows, as it seems."
    if scores.get("optimistic"):
        return f"{score} is optimistic: every row took part in choosing the hyperparameters. The trivial baseline scores {trivial}."
    if doubts := doubts_of_folds(scores):
        return f"{score} may be optimistic: {'; '.join(doubts)}. The trivial baseline scores {trivial}."
    choice = "making this blend, one of several" if is_repeated else "any choice"
    return f"{score} on rows that took no part in {choice}; the trivial baseline scores {trivial}."


def overview_section(charts: Charts, rows: HonestRows | None, prepared: Prepared, pixels: Pixels | None) -> Section:
    """The scores, and of the scored rows what `glance_blocks` shows.  pixels: of the training rows in index order."""
    scores = Charts(charts.drawings, "Bars: one standard error. Hollow: on the rows it was chosen on, optimistic.")
    of_rows = glance_blocks(rows, prepared, pixels) if rows is not None else []
    sources = "blend/scores.json, blend/honest_oof.npz · make predict"
    return Section("overview", "At a glance", sources, [scores, *of_rows, Text([charts.note])])


def score_kind(scores: Scores) -> str:
    """What the score of the blend is: doubted | optimistic | honest."""
    if doubts_of(scores):
        return "doubted"
    return "optimistic" if scores.get("optimistic") else "honest"


def score_figures(scores: Scores, test_scores: Sequence[ScoreOnTest]) -> list[Figure]:
    """Honest score, trivial baseline, expected and actual leaderboard scores: the first figures at the top of the page.

    pipelines/inspect/report.py adds the others.
    """
    band = scores["leaderboard_band"]  # None without test images
    rows = " that took no part in the choice"
    if doubts_of(scores):
        rows = f"; {without_expectation(scores)}"
    elif scores.get("optimistic"):
        rows = " that also chose hyperparameters (there are no others)"
    elif scores.get("tuned_folds"):
        rows += f"; those of {fold_names(scores['tuned_folds'])} chose hyperparameters"
    honest = with_error(scores["honest"], scores["standard_error"], scores["metric"])
    notes = [
        f"on {counted(scores['honest_rows'], 'row')}{rows}",
        *doubts_of_folds(scores),
        *no_better_than_trivial(scores),
    ]
    trivial = scores["trivial"]
    baseline = with_error(trivial["score"], trivial["standard_error"], scores["metric"])
    result = [
        Figure(f"{score_kind(scores)} {scores['metric']}", honest, "; ".join(notes), main=True),
        Figure("trivial baseline", baseline, f"{trivial['name']}: looks at no row"),
    ]
    if reason := without_expectation(scores):
        result.append(Figure("expected on test rows", "unknown", reason))
    elif band:
        note = f"95 % interval, for {counted(scores['test_rows'], 'test row')} like the training rows"
        result.append(Figure("expected on test rows", f"{number(band[0], band[1])} to {number(band[1])}", note))
    return [*result, *(Figure(one.name, f"{one.score:.5f}", one.source) for one in test_scores)]


def scores_on_test(row: ledger.SubmissionState | None, grades: Path) -> list[ScoreOnTest]:
    """What Kaggle and `make grade` answered.  row: of the blend's submission.  grades: grades.json."""
    if row is None:
        return []
    kaggle = {"public": row.public_score, "private": row.private_score}
    result = [
        ScoreOnTest(name, score, "Kaggle's score, on test rows") for name, score in kaggle.items() if score is not None
    ]
    if grade := ledger.local_grade(grades, row.entry):
        for name in ("public", "private"):
            if (test_rows := grade.get(f"{name}_rows")) and grade.get(name) is not None:
                trivial = grade.get(f"{name}_trivial")
                beside = "" if trivial is None else f"; trivial baseline {trivial:.4f}"
                source = f"make grade, on {counted(test_rows, 'test row')}{beside}"
                result.append(ScoreOnTest(name, grade[name], source))
    return result


def score_charts(scores: Scores, chain: Chain, test_scores: Sequence[ScoreOnTest]) -> Charts:
    """Scores of members, baselines and blend, all on the same rows; those on test rows are marked."""
    is_honest, weights = not scores.get("optimistic"), chain.blend.shares
    is_single = len(scores["members"]) == 1  # the blend, and what it is compared with, is that member
    points = []
    for name, single in scores["members"].items():
        note = "identity view" if is_single else f"weight {weights.get(name, 0.0):.2f}"
        note += ", not above trivial" if name in scores["no_better_members"] else ""
        if not is_single or single["score"] != scores["honest"]:
            points.append(Point(name, single["score"], single["standard_error"], is_honest, note))
    if not is_single:
        for name, key in (("equal weights", "equal"), ("best member", "best")):
            points.append(Point(name, scores[key]["score"], scores[key]["standard_error"], is_honest, "baseline"))
    if not is_single or scores["chosen_on"] != scores["honest"]:
        points.append(Point("blend, rows that chose it", scores["chosen_on"], None, False, "optimistic"))
    kind = score_kind(scores)
    note = f"{next(iter(scores['members']))}, its views" if is_single else ""
    points.append(Point(f"blend, {kind}", scores["honest"], scores["standard_error"], is_honest, note))
    for one in test_scores:
        title = f"{one.name} leaderboard" if one.source.startswith("Kaggle") else f"{one.name}, make grade"
        points.append(Point(title, one.score, None, True, "other rows: test", test=True))
    band = None if without_expectation(scores) else scores["leaderboard_band"] and tuple(scores["leaderboard_band"])
    ends = [end for one in points for end in (one.value - (one.error or 0), one.value + (one.error or 0))]
    ends += band or ()
    trivial, width = scores["trivial"], max(ends) - min(ends)
    rows, tuned = counted(scores["honest_rows"], "out-of-fold row"), scores.get("tuned_folds")
    left_out = f"; those of {fold_names(tuned)} chose hyperparameters and are left out" if tuned and is_honest else ""
    note = f"Circles: the same {rows}{left_out}. A member's score is that of its identity view, for which nothing was chosen."
    if not is_honest:
        note += " All are hollow, because every row chose hyperparameters: optimistic."
    if is_honest and kind == "honest":
        note += " Quote the filled one of the blend."
    if test_scores:
        note += " Blue: on test rows. The shaded interval is for all of them; the score of a part scatters more."
    if min(ends) - width <= trivial["score"] <= max(ends) + width:  # else it would compress the chart
        points.insert(0, Point("trivial baseline", trivial["score"], trivial["standard_error"], is_honest))
    return Charts([score_chart(points, band, scores["metric"])], note)
