"""The ledger as a table: what was expected, what Kaggle said, and how far apart the two may be by chance."""

from collections.abc import Sequence
from datetime import UTC, datetime

from competition.data.competition import Competition
from competition.data.prepared import load_prepared
from competition.errors import Refusal
from competition.remote import submit
from competition.remote.kaggle_client import Client
from competition.report.repeated_choices import choices_lines
from competition.submission import ledger
from pipelines.stage import Job, kaggle_client, main, shown


def run(job: Job) -> None:
    """submissions/ledger.jsonl -> a table on the screen; scores that came since are added to the ledger"""
    path = job.submissions / "ledger.jsonl"
    found = mine(job)
    if not found:
        job.say(f"submissions: none of {job.params.competition.name} in {shown(path)}; `make predict` writes one")
        return
    left = ""
    if slug := slug_of(job):
        try:
            client = kaggle_client(job, tries=1)
            for row in found:
                catch_up(job, client, slug, row)
            limits = submit.limits(client, slug)
            left = f"{limits.left} left today, {limits.today} made"
            found = mine(job)
        except Refusal as refusal:
            left = f"how many are left today is not known: {refusal}"
    for line in laid_out(ledger.table(found, job.params.kaggle.public_share)):
        job.say(line)
    share = job.params.kaggle.public_share
    job.say(
        f"gap: public minus honest; noise: 95 % interval of the gap by chance, if {share:.0%} of the test rows "
        "count (kaggle.public_share)"
    )
    prepared = load_prepared(job.path("data")) if job.path("data", "manifest.json").exists() else None
    for line in choices_lines(job.work, job.submissions, job.params, prepared):
        job.say(line)
    if unreadable := ledger.read(path).unreadable:
        job.say(f"submissions: {unreadable} lines of {shown(path)} cannot be read and are left where they are")
    if left:
        job.say(f"submissions: {left}")


def mine(job: Job) -> list[ledger.Row]:
    return ledger.of_competition(ledger.read(job.submissions / "ledger.jsonl"), job.params.competition.name)


def slug_of(job: Job) -> str:
    """Kaggle's name of the competition, once the data say that it is there; "" for a local one."""
    described = job.path("data", "competition.json")
    return Competition.load(described).slug if described.exists() else ""


def catch_up(job: Job, client: Client, slug: str, row: ledger.Row) -> None:
    """A submission that had no score when it was last asked for."""
    if row.state != "submitted":
        return
    found = submit.follow(client, slug, int(row.ref), 0, 1, 1, lambda waited: None)
    if found.status == "PENDING":
        return
    what: ledger.What = "failed" if found.status == "ERROR" else "scored"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    event = ledger.Event(row.entry.digest, what, row.ref, found.public, found.private, found.error, now)
    ledger.append(job.submissions / "ledger.jsonl", event)


def laid_out(table: Sequence[dict[str, str]]) -> list[str]:
    """Columns as wide as their longest text."""
    lines = [{name: name for name in table[0]}, *table]
    width = {name: max(len(line[name]) for line in lines) for name in table[0]}
    return ["  ".join(line[name].ljust(width[name]) for name in width).rstrip() for line in lines]


if __name__ == "__main__":
    main(run)
