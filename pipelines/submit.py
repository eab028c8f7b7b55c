"""Check the newest submission as Kaggle would, and say how to hand it in."""

from competition.data.prepared import load_prepared
from competition.submission import format, ledger
from pipelines.stage import Job, add_file, main, newest_submission, shown


def run(job: Job) -> None:
    """submissions/<digest>.csv, data/sample_submission.csv -> the command to type"""
    job.needs(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    competition = prepared.competition
    entry = newest_submission(job, ledger.read(job.submissions / "ledger.jsonl").entries)
    file = job.submissions / entry.file
    checked = format.check(file, prepared.sample, prepared.part("test")["id"], competition)
    for line in [*checked.mended, *checked.warnings]:
        job.say(f"submit: {line}")
    job.say(f"submit: {shown(file)} holds {checked.rows:,} rows in the order and with the columns of the sample")
    job.say(
        f"submit: honest {entry.metric} {entry.honest_score:.4f} ± {entry.standard_error:.4f}"
        + (f" (PARTIAL {entry.partial})" if entry.partial else "")
    )
    if competition.slug:
        job.say(f"kaggle competitions submit {competition.slug} -f {shown(file)} -m 'goldfold {entry.digest[:12]}'")
    else:
        job.say("submit: this competition is not on Kaggle; `make grade` scores it against its private solution")


if __name__ == "__main__":
    main(run, add_file)
