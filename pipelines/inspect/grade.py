"""Score the submission of the current parameters against the private solution of a local competition, and count this use of it."""

import json
from dataclasses import asdict

from competition.config.errors import UserError, counted
from competition.ensemble.expected_score import interval
from competition.files.manifest import write_json
from competition.prepare.adapter_types import SOLUTION
from competition.report.terminal import with_error
from competition.submission import grading, ledger
from pipelines.execution.selection import require_test_images, submission_of
from pipelines.terminal.job import Job


def run(job: Job) -> None:
    """submissions/<digest>.csv, raw/private/solution.csv -> public and private score; ledger.jsonl"""
    prepared = job.prepared
    require_test_images(job)
    solution = job.path("raw", SOLUTION)
    if not solution.exists():
        on_kaggle = "`make submit` scores the submission on Kaggle"
        advice = on_kaggle if prepared.competition.slug else grading.WITHOUT_SOLUTION
        raise UserError(f"{job.params.competition.name} has no local private solution; {advice}")
    ledger_file = job.submissions / "ledger.jsonl"
    entry = submission_of(job, "grade")
    metric = prepared.competition.metric
    if entry.metric != metric:
        raise UserError(
            f"{entry.file} was blended by {entry.metric}, and competition.metric is {metric}; `make blend` makes the blend by "
            f"{metric}, and `make grade` then scores it; the solution was not opened"
        )
    if not prepared.competition.scores_its_submissions:
        raise UserError(
            f"{metric} scores probabilities, and submissions of {prepared.competition.name} are labels; "
            'SET="competition.metric=..." grades by a metric of labels; the solution was not opened'
        )
    competition, labels = prepared.competition, prepared.part("train")["label"].to_numpy()
    train_labels, file = competition.targets.of(labels), job.submissions / entry.file
    grade = grading.grade(file, solution, competition, prepared.metric, train_labels, ledger_file)
    grades_file = job.path("grades.json")  # for `make report`
    grades = json.loads(grades_file.read_text(encoding="utf-8")) if grades_file.is_file() else {}
    write_json(grades_file, {**grades, entry.file: {**grades.get(entry.file, {}), metric: asdict(grade)}})
    sign, scores, beside = prepared.metric.sign, [], []  # beside: the trivial baseline on the same rows
    for part in ("public", "private"):
        score, rows, trivial = (getattr(grade, f"{part}{name}") for name in ("", "_rows", "_trivial"))
        if rows:
            scores.append(f"{part} {'undefined' if score is None else f'{score:.4f}'} ({counted(rows, 'row')})")
        if trivial is not None:
            beside.append(f"{part} {trivial:.4f}{'' if sign * score > sign * trivial else ', NOT BEATEN'}")
    job.echo(f"grade: {entry.file}: {', '.join(scores) or 'no row of the solution counts'}")
    if beside:
        job.echo(f"grade: the trivial baseline of the training rows ({grade.trivial}) scores {', '.join(beside)}")
    if entry.honest_score is not None and entry.standard_error and entry.expected and grade.private is not None:
        kind = "doubted" if entry.is_doubted else "optimistic" if entry.optimistic else "honest"
        of_rows = with_error(entry.honest_score, entry.standard_error, metric)
        job.echo(f"grade: the {kind} score was {of_rows}; {comparison(entry, grade.private, grade.private_rows, sign)}")
    times = counted(grade.solution_accesses, "time")
    job.echo(f"grade: the solution was opened {times}; choosing by it repeatedly makes it optimistic")


def comparison(entry: ledger.Entry, private: float, rows: int, sign: int) -> str:
    """The private score against the interval that chance explains on as many rows; of a doubted honest score nothing follows.

    sign: -1 if less is better in the metric.
    """
    if entry.is_doubted:
        return "nothing was expected of the private one: `make blend` and `make report` say which member's predictions are doubted"
    low, high = interval(entry.expected, rows)
    of_rows = f"{low:.4f} to {high:.4f}, the 95 % interval for {counted(rows, 'row')}"
    if low <= private <= high:
        return f"the private one is inside of {of_rows}"
    advice = (
        "look at series across folds and adversarial validation (`make report`), and whether models of external predictions were trained "
        "on the rows they predict, "
        "or their ids or columns are exchanged"
    )
    if sign * (private - (low + high) / 2) > 0:
        advice = (
            "better than expected: by chance, or because a submission averages the fold models (docs/honest_scores.md)"
        )
    return f"the private one is outside of {of_rows}; {advice}"
