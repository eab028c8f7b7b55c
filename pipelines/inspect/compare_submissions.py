"""Compare two submissions: the ids on which they differ, and the classes before and after."""

import csv

from competition.files.manifest import atomic_write
from competition.prepare.adapter_types import Competition
from competition.submission.compare import compare_submissions
from pipelines.execution.selection import submission_named
from pipelines.terminal.output import display_path
from pipelines.terminal.runner import Job

MAX_LINES = 10  # of each kind


def run(job: Job) -> None:
    """submissions/<A>.csv, submissions/<B>.csv -> compare_submissions/<A>-<B>.csv: id, a, b"""
    job.workspace.require(job.path("data", "manifest.json"))
    competition = Competition.load(job.path("data", "competition.json"))
    a, b = submission_named(job, job.options.a), submission_named(job, job.options.b)
    comparison = compare_submissions(a, b, competition)
    job.echo(
        f"compare-submissions: {b.stem} differs from {a.stem} in {len(comparison.changed):,} of {comparison.rows:,} rows "
        f"({comparison.share:.1%})"
    )
    if competition.predicts != "label":
        number = "value" if competition.predicts == "value" else "probability"
        job.echo(
            f"compare-submissions: largest difference of a {number} {comparison.largest_gap:.4f}, correlation {comparison.correlation:.5f}"
        )
    job.echo(*(f"  {rows:>6,}  {before} -> {after}" for before, after, rows in comparison.moves[:MAX_LINES]))
    if len(comparison.moves) > MAX_LINES:
        job.echo(f"  and {len(comparison.moves) - MAX_LINES:,} other pairs of classes")
    job.echo(*(f"  {name}: {in_a:,} rows -> {in_b:,}" for name, in_a, in_b in comparison.counts[:MAX_LINES]))
    if not comparison.changed:
        return
    job.echo(*(f"  {name}: {before} -> {after}" for name, before, after in comparison.changed[:MAX_LINES]))
    table = job.path("compare_submissions", f"{a.stem}-{b.stem}.csv")
    with atomic_write(table) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("id", "a", "b"), *comparison.changed])
    job.echo(f"compare-submissions: every id that differs is in {display_path(table)}")
