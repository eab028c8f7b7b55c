"""Score the newest submission against the private solution of a local competition, and count this use of it."""

from competition.config.errors import UserError
from competition.data.adapters import adapter_named
from competition.submission import grading, ledger
from pipelines.cli import main
from pipelines.runner import Job, newest_submission, require_test_images


def run(job: Job) -> None:
    """submissions/<digest>.csv, raw/private/solution.csv -> public and private score; ledger.jsonl"""
    prepared = job.prepared()
    require_test_images(job, prepared)
    solution = adapter_named(job.params.competition.adapter).solution(job.path("raw"))
    if solution is None or not solution.exists():
        advice = (
            "`make submit` scores the submission on Kaggle" if prepared.competition.slug else grading.WITHOUT_SOLUTION
        )
        raise UserError(f"{job.params.competition.name} has no local private solution; {advice}")
    ledger_file = job.submissions / "ledger.jsonl"
    entry = newest_submission(job, ledger.read(ledger_file).entries)
    file, looks = job.submissions / entry.file, job.path("looks.json")
    grade = grading.grade(file, solution, prepared.competition, ledger_file, looks)
    public = f"public {grade.public:.4f} ({grade.public_rows} rows), " if grade.public_rows else ""
    job.echo(f"grade: {entry.file}: {public}private {grade.private:.4f} ({grade.private_rows} rows)")
    if entry.honest_score is not None and entry.standard_error:
        gap, kind = grade.private - entry.honest_score, "optimistic" if entry.optimistic else "honest"
        job.echo(
            f"grade: the {kind} score was {entry.honest_score:.4f} ± {entry.standard_error:.4f}; "
            f"the private one is {gap:+.4f} away, {abs(gap) / entry.standard_error:.1f} standard errors"
        )
    job.echo(
        f"grade: the solution was opened {grade.looks} time{'s' if grade.looks != 1 else ''}; "
        "choosing by it repeatedly makes it optimistic"
    )


if __name__ == "__main__":
    main("grade")
