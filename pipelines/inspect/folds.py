"""Export the folds and the ids of the test images as CSV, for models that are trained outside this project."""

from pathlib import Path

from competition.config.errors import counted
from competition.files.manifest import atomic_write
from competition.prepare.prepared import fold_tables
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path


def run(job: Job) -> None:
    """data/ -> folds.csv: id, label, fold, group, file; test_ids.csv: id, file"""
    prepared, raw = job.prepared, Path(display_path(job.path("raw")))
    for name, table in zip(("folds.csv", "test_ids.csv"), fold_tables(prepared, raw), strict=True):
        with atomic_write(job.path(name)) as temporary:
            table.to_csv(temporary, index=False, lineterminator="\n")
        job.echo(f"folds: {counted(len(table), 'row')} in {display_path(job.path(name))}")
    job.echo(f"folds: predictions.folds of a member trained on these folds: {prepared.folds_digest}")
