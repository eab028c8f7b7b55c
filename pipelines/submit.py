"""Check the newest submission as Kaggle would, and say how to hand it in."""

import argparse
from pathlib import Path

from competition.data.prepared import load_prepared
from competition.errors import Refusal
from competition.submission import format, ledger
from pipelines.stage import Job, main, shown


def run(job: Job) -> None:
    """submissions/<digest>.csv, data/sample_submission.csv -> the command to type"""
    job.needs(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    competition = prepared.competition
    entry = newest(job)
    file = job.submissions / entry.file
    checked = format.check(file, prepared.sample, prepared.part("test")["id"], competition)
    for line in [*checked.mended, *checked.warnings]:
        job.say(f"submit: {line}")
    job.say(f"submit: {shown(file)} holds {checked.rows:,} rows in the order and with the columns of the sample")
    job.say(f"submit: honest {entry.metric} {entry.honest_score:.4f} ± {entry.standard_error:.4f}{' (PARTIAL ' + entry.partial + ')' if entry.partial else ''}")
    if competition.slug:
        job.say(f"kaggle competitions submit {competition.slug} -f {shown(file)} -m 'goldfold {entry.digest[:12]}'")
    else:
        job.say("submit: this competition is not on Kaggle; `make grade` scores it against its private solution")


def newest(job: Job) -> ledger.Entry:
    """The last submission made for this competition, or the one named by --file."""
    entries = [e for e in ledger.read(job.submissions / "ledger.jsonl").entries if e.competition == job.params.competition.name]
    if job.options.file:
        entries = [e for e in entries if e.file == Path(job.options.file).name]
    if not entries or not (job.submissions / entries[-1].file).exists():
        named = f" named {job.options.file}" if job.options.file else ""
        raise Refusal(f"no submission{named} of {job.params.competition.name} was found in {shown(job.submissions)}; `make predict` writes one")
    return entries[-1]


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", default="", help="this submission, not the newest")


if __name__ == "__main__":
    main(run, add_file)
