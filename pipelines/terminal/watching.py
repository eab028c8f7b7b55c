"""`make report WATCH=1`: the page is written again whenever results change, until Ctrl-C."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from competition.config.errors import UserError
from pipelines.terminal.output import display_path
from pipelines.terminal.runner import Job

POLL_SECONDS = 2.0
PAUSE = 4  # pause after a page, in times of its own seconds, so that training keeps its cores
# What a report reads, or what is written after it: manifests, histories and checkpoints of epochs, tables, studies.
SUFFIXES = (".json", ".jsonl", ".csv", ".log", ".png")
SKIPPED = ("cache", "raw")  # folders of images


def watch(job: Job, page: Path, write: Callable[[Job, bool], None]) -> None:
    """Write the page whenever results changed; after Ctrl-C once more, without the reloading. Raises KeyboardInterrupt.

    write: writes the page of a job; its second argument says whether the page reloads itself.
    """
    job.echo(f"report: {display_path(page)} follows the results, and reloads itself in the browser; Ctrl-C ends it")
    seen, last_message = None, ""
    try:
        while True:
            started = time.monotonic()
            if (times := result_times(job)) != seen:
                seen, missing = times, attempt(job, write, True)
                if not missing:
                    job.echo(f"report: written at {datetime.now():%H:%M:%S}")
                elif missing != last_message:
                    job.echo(f"report: waiting for results: {missing}")
                last_message = missing
            time.sleep(max(POLL_SECONDS, PAUSE * (time.monotonic() - started)))
    except KeyboardInterrupt:
        if page.is_file() and (missing := attempt(job, write, False)):
            job.echo(f"report: the page still reloads itself: {missing}; `make report` writes it again")
        raise


def attempt(job: Job, write: Callable[[Job, bool], None], reloads: bool) -> str:
    """Write the page from what is on disk now. Returns why that is not possible; "" = it is written."""
    try:
        write(replace(job, workspace=replace(job.workspace)), reloads)  # a new workspace reads the data again
    except (UserError, OSError) as error:  # OSError: a file was replaced meanwhile, which is a change
        return str(error)
    return ""


def result_times(job: Job) -> dict[Path, int]:
    """Path -> modification time of every file whose change makes another page."""
    files = [job.submissions / "ledger.jsonl"]
    for folder, folders, names in os.walk(job.work):
        folders[:] = [name for name in folders if name not in SKIPPED]
        files += [Path(folder, name) for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
    times = {}
    for file in files:
        with suppress(OSError):  # removed meanwhile
            times[file] = file.stat().st_mtime_ns
    return times
