"""Run the workers of a study on the machines of a Ray cluster (`make tune CLUSTER=... WORKERS=...`)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from competition.cluster.node import TaskRequest
from competition.config.digests import to_plain
from competition.config.errors import UserError
from competition.files.manifest import copy_file
from competition.tuning.settings import StudySettings
from competition.tuning.storage import JOURNAL
from competition.workspace.study_worker import journal_of
from pipelines.execution.cluster import run_on_cluster
from pipelines.terminal.runner import Job


def run_workers(job: Job, name: str, settings: StudySettings, depends: Mapping[str, object]) -> None:
    """Run WORKERS workers of a member's study on the cluster, and again where their machine or process is lost.

    job: of reachable_study.  depends: what the study depends on; a machine that computes something else refuses to join.
    """
    values = {"study": settings.name, "depends": to_plain(depends)}
    values |= {"storage": job.params.tune.storage, "workers": job.options.workers}
    requests = []
    for number in range(1, job.options.workers + 1):
        folder = f"{job.work.name}/workers/{name}-{number}"
        requests.append(TaskRequest(f"{name} worker {number}", name, "tune", folder, values, force=True))
    run_on_cluster(job, requests, lambda request, _: f"cluster: {request.name}: no trial is left")


def with_storage(job: Job, storage: str) -> Job:
    """The job with another tune.storage; a study does not depend on where it is stored."""
    params = replace(job.params, tune=replace(job.params.tune, storage=storage))
    return replace(job, workspace=job.workspace.with_params(params))


@contextmanager
def reachable_study(job: Job, name: str, study: str) -> Iterator[Job]:
    """The job with a storage of its study that every machine reaches: tune.storage, or a journal in cluster.shared.

    The journal is copied from and to this machine's own, which `make report` and later studies read.
    Raises UserError if there is neither, or the storage is a file.
    """
    storage, shared = job.params.tune.storage, job.params.cluster.shared.rstrip("/")
    if not storage and not shared:
        raise UserError(
            "CLUSTER=: the workers of a study need a storage that every machine reaches, but tune.storage is empty and the journal "
            "is on this machine; set tune.storage to a database, e.g. postgresql+psycopg://user:password@host/database, or "
            "cluster.shared to a folder that all machines have"
        )
    if storage.startswith("sqlite"):
        raise UserError(
            "CLUSTER=: tune.storage is SQLite, a file that one machine writes; set it to a database server, e.g. "
            "postgresql+psycopg://user:password@host/database"
        )
    if storage:
        yield job
        return
    own, common = journal_of(job.workspace, name), Path(shared) / job.work.name / "tune" / f"{study}.log"
    copy_longer(own, common)
    try:
        yield with_storage(job, f"{JOURNAL}{common}")
    finally:
        copy_longer(common, own)


def copy_longer(source: Path, target: Path) -> None:
    """Copy a journal unless the target is at least as long: a journal only grows."""
    if source.is_file() and (not target.is_file() or target.stat().st_size < source.stat().st_size):
        copy_file(source, target)
