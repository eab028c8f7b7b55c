"""Score the newest submission against the private solution of a local competition, and count this use of it."""

from competition.config.errors import UserError
from competition.data.adapters import adapter_named
from competition.data.prepared import load_prepared
from competition.submission import grading, ledger
from pipelines.cli import main
from pipelines.runner import Job, newest_submission


def run(job: Job) -> None:
    """submissions/<digest>.csv, raw/private/solution.csv -> public and private score; ledger.jsonl"""
    job.require(job.path("data", "manifest.json"), "download")
    solution = adapter_named(job.params.competition.adapter).solution(job.path("raw"))
    if solution is None or not solution.exists():
        raise UserError(
            f"{job.params.competition.name} has no local private solution; `make submit` scores the submission on Kaggle"
        )
    ledger_file = job.submissions / "ledger.jsonl"
    entry = newest_submission(job, ledger.read(ledger_file).entries)
    competition = load_prepared(job.path("data")).competition
    grade = grading.grade(job.submissions / entry.file, solution, competition, ledger_file, job.path("looks.json"))
    job.echo(
        f"grade: {entry.file}: public {grade.public:.4f} ({grade.public_rows} rows), "
        f"private {grade.private:.4f} ({grade.private_rows} rows)"
    )
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
