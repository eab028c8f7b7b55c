"""Two submissions: on which ids they differ, from which class to which."""

import csv

from competition.data.competition import Competition
from competition.manifest import atomic
from competition.submission.compare import compare
from pipelines.stage import Job, add_two, main, shown, submission_named

SHOWN = 10  # lines of each kind


def run(job: Job) -> None:
    """submissions/<A>.csv, submissions/<B>.csv -> diff/<A>-<B>.csv: id, a, b"""
    job.needs(job.path("data", "manifest.json"), "download")
    competition = Competition.load(job.path("data", "competition.json"))
    a, b = submission_named(job, job.options.a), submission_named(job, job.options.b)
    found = compare(a, b, competition)
    job.say(
        f"diff: {b.stem} differs from {a.stem} in {len(found.changed):,} of {found.rows:,} rows ({found.share:.1%})"
    )
    if competition.predicts == "probabilities":
        job.say(f"diff: largest gap of a probability {found.largest_gap:.4f}, correlation {found.correlation:.5f}")
    for before, after, rows in found.moves[:SHOWN]:
        job.say(f"  {rows:>6,}  {before} -> {after}")
    if len(found.moves) > SHOWN:
        job.say(f"  and {len(found.moves) - SHOWN:,} other pairs of classes")
    for name, in_a, in_b in found.counts[:SHOWN]:
        job.say(f"  {name}: {in_a:,} rows -> {in_b:,}")
    if not found.changed:
        return
    for name, before, after in found.changed[:SHOWN]:
        job.say(f"  {name}: {before} -> {after}")
    table = job.path("diff", f"{a.stem}-{b.stem}.csv")
    with atomic(table) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("id", "a", "b"), *found.changed])
    job.say(f"diff: every id that differs is in {shown(table)}")


if __name__ == "__main__":
    main(run, add_two)
