"""Compare two submissions: the ids on which they differ, and the classes before and after."""

from collections import Counter

from competition.files.manifest import atomic_write
from competition.prepare.adapter_types import Competition
from competition.submission.compare import compare_submissions
from pipelines.execution.selection import submission_named
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path

MAX_LINES = 10  # of each kind


def run(job: Job) -> None:
    """submissions/<A>.csv, submissions/<B>.csv -> compare_submissions/<A>-<B>.csv: id, a, b"""
    job.workspace.require(job.path("data", "manifest.json"))
    competition = Competition.load(job.path("data", "competition.json"))
    a, b = submission_named(job, job.options.a), submission_named(job, job.options.b)
    answers, largest = compare_submissions(a, b, competition)
    changed = answers[answers["a"] != answers["b"]]
    job.echo(
        f"compare-submissions: {b.stem} differs from {a.stem} in {len(changed):,} of {len(answers):,} rows "
        f"({len(changed) / len(answers):.1%})"
    )
    if competition.predicts != "label":
        number = "value" if competition.predicts == "value" else "probability"
        job.echo(f"compare-submissions: largest difference of a {number} {largest:.4f}")
    if not len(changed):
        return
    pairs = Counter(zip(changed["a"], changed["b"])).most_common()
    job.echo(*(f"  {rows:>6,}  {before} -> {after}" for (before, after), rows in pairs[:MAX_LINES]))
    if len(pairs) > MAX_LINES:
        job.echo(f"  and {len(pairs) - MAX_LINES:,} other pairs of classes")
    job.echo(*(f"  {row.Index}: {row.a} -> {row.b}" for row in changed[:MAX_LINES].itertuples()))
    table = job.path("compare_submissions", f"{a.stem}-{b.stem}.csv")
    with atomic_write(table) as temporary:
        changed.to_csv(temporary, index_label="id", lineterminator="\n")
    job.echo(f"compare-submissions: every id that differs is in {display_path(table)}")
