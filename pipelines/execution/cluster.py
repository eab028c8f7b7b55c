"""Train, predict and run the workers of studies on a Ray cluster: what is missing goes out, result folders come home."""

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich import filesize

from competition.cluster import connection, node
from competition.cluster.driver import Callbacks, Status, run_tasks
from competition.cluster.node import Setup, TaskRequest
from competition.cluster.project import files_to_send, local_files, write_project
from competition.config.digests import to_plain
from competition.config.errors import UserError, counted
from competition.files.manifest import Stored, changed_keys, copy_file, read_manifest, sha256
from competition.files.replacement import replace_model, training_path
from competition.kernels.results import install
from competition.training.backend import versions
from competition.tuning.settings import StudySettings
from competition.workspace.dependencies import FoldModel, fold_model
from competition.workspace.features_and_soft_labels import missing_teacher
from competition.workspace.runs import Run, runs_of, write_run_file
from competition.workspace.scores import result_line
from competition.workspace.studies import tuned_member
from pipelines.execution.selection import selected_folds
from pipelines.terminal.job import Job, lock
from pipelines.terminal.options import ROOT
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar

if TYPE_CHECKING:
    from competition.training.device import Device

COMMAND = ("-u", "-m", "pipelines.execution.cluster_child")
Models = dict[str, tuple[Run, FoldModel]]  # task -> its model
Deliver = Callable[[TaskRequest, Path], str]  # receives an archive, keeps it if needed; returns the line for the screen


def machines_of_cluster(job: Job, device: "Device") -> list[connection.Machine]:
    """The machines that are there now.  device: what this process holds.

    Raises UserError if there is no cluster, if a member fits on no machine, or if fold models could need that device.
    """
    import ray

    cluster = job.params.cluster
    with connection.connected(job.options.cluster):
        machines, own = connection.alive_machines(), ray.get_runtime_context().get_node_id()
    connection.check_addresses(machines, cluster.public)
    needs = {name: cluster.members.get(name, cluster.needs) for name in job.params.members}
    connection.check_needs(machines, needs)
    if device.kind != "cpu" and any(machine.node == own and machine.resources["CPU"] for machine in machines):
        raise UserError(
            f"CLUSTER=: this machine's {device.kind} computes features, so no fold model can use it; start the Ray node of "
            "this machine with --num-cpus=0"
        )
    return machines


def train_on_cluster(job: Job, names: Sequence[str]) -> None:
    """Train the missing fold models of these members, teachers before students.

    Raises UserError if another teacher is neither current nor among `names`. Fold models that came home stay if an error ends
    the tasks.
    """
    models: Models = {}
    for name in names:
        for run in runs_of(job.workspace, name):
            selected = [fold_model(run, fold) for fold in selected_folds(job)]
            stale = [model for model in selected if job.options.force or not model.is_current]
            if len(stale) < len(selected):
                job.echo(f"train {run.title}: {len(selected) - len(stale)} of {len(selected)} fold models current")
            models |= {model.name: (run, model) for model in stale}
    # The longest first: the last machine then has least to do while the others wait.
    seconds = {task: run.member.image_size**2 * run.member.train.epochs for task, (run, _) in models.items()}  # about
    requests = []
    for run, model in [models[task] for task in sorted(models, key=seconds.__getitem__, reverse=True)]:
        inputs = []
        for teacher_run in [teacher_run for runs in run.teachers.values() for teacher_run in runs]:
            needed = fold_model(teacher_run, model.fold)
            if needed.name not in models and not needed.is_current:
                raise missing_teacher(run, teacher_run, model.fold)
            inputs.append(result_folder(job, needed.manifest))
        requests.append(request_for(job, "train", run, model, model.manifest, tuple(inputs)))
    run_on_cluster(job, requests, partial(deliver_model, job, models))


def predict_on_cluster(job: Job, stale: Sequence[tuple[Run, Mapping[int, Stored]]]) -> None:
    """Predict by the fold models of each run that have no current predictions."""
    predictions, requests = dict[str, Stored](), []  # task -> its predictions
    for run, folds in stale:
        for fold, result in folds.items():
            model = fold_model(run, fold)
            predictions[model.name] = result
            inputs = (result_folder(job, model.manifest),)
            requests.append(request_for(job, "predict", run, model, result.manifest, inputs))
    run_on_cluster(job, requests, partial(deliver_views, job, predictions))


def run_workers(job: Job, name: str, settings: StudySettings, depends: Mapping[str, object]) -> None:
    """Run WORKERS workers of a member's study on the cluster, and again where their machine or process is lost.

    depends: what the study depends on; a machine that computes something else refuses to join.
    """
    values = {"study": settings.name, "depends": to_plain(depends)}
    values |= {"storage": job.params.tune.storage, "workers": job.options.workers}
    requests = []
    for number in range(1, job.options.workers + 1):
        folder = f"{job.work.name}/workers/{name}-{number}"
        requests.append(TaskRequest(f"{name} worker {number}", name, "tune", folder, values, force=True))
    run_on_cluster(job, requests, lambda request, _: f"cluster: {request.name}: no trial is left")


def require_reachable_storage(storage: str) -> None:
    """Raise UserError if not every machine reaches the storage of studies.  storage: tune.storage."""
    if not storage or storage.startswith("sqlite"):
        found = "SQLite, a file that one machine writes" if storage else "empty and the journal is on this machine"
        raise UserError(
            f"CLUSTER=: the workers of a study need a storage that every machine reaches, but tune.storage is {found}; set it to a "
            "database server, e.g. postgresql+psycopg://user:password@host/database, or to journal:PATH, a file in a folder that all "
            "machines have"
        )


def request_for(
    job: Job, verb: str, run: Run, model: FoldModel, manifest: Path, inputs: tuple[str, ...]
) -> TaskRequest:
    values = {"run": run.digest, "depends": dict(run.depends), "fold": model.fold}
    folder = result_folder(job, manifest)
    return TaskRequest(model.name, run.name, verb, folder, values, inputs, job.options.force)


def result_folder(job: Job, manifest: Path) -> str:
    """The folder of a result relative to work/."""
    return manifest.parent.relative_to(job.work.parent).as_posix()


def run_on_cluster(job: Job, requests: Sequence[TaskRequest], deliver: Deliver) -> None:
    """Connect, run all tasks and install each result as it comes."""
    if not requests:
        return
    verb, cluster = requests[0].verb, job.params.cluster
    with (
        lock(job.path("cluster", "driver.lock")),
        tempfile.TemporaryDirectory(dir=job.path("cluster")) as folder,
        Bar(len(requests), f"cluster: {verb}", "tasks") as bar,
    ):
        members = {  # a study searches around the values in the file
            name: member if verb == "tune" else tuned_member(job.workspace, name)
            for name, member in job.params.members.items()
        }
        write_project(Path(folder) / "project", ROOT, job.params, members)
        warned: set[str] = set()

        def deliver_archive(request: TaskRequest, data: bytes) -> None:
            path = Path(folder) / "archive"
            path.write_bytes(data)
            job.echo(deliver(request, path))

        def show(status: Status) -> None:
            job.at_step()  # about once a second
            running = ", ".join(f"{task} on {address}" for task, address in sorted(status.running.items())[:4])
            bar.text = f"{len(status.running)} running: {running}; {status.latest}"
            bar.update_to(status.done)

        callbacks = Callbacks(
            lambda name: node.archive(job.work.parent / name, Path(folder)),
            deliver_archive,
            job.echo,
            show,
            partial(compare_versions, job, warned),
        )
        with connection.connected(job.options.cluster, Path(folder) / "project"):
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # it stops the tasks, as Ctrl-C does
            machines = connection.alive_machines()
            addresses = ", ".join(machine.address for machine in machines[:4]) + (" ..." if len(machines) > 4 else "")
            job.echo(f"cluster: {counted(len(machines), 'machine')} ({addresses})")
            if os.environ.get("RAY_AUTH_MODE") != "token":
                job.echo(
                    "cluster: WARNING whoever reaches Ray's ports on these machines runs code on them, because RAY_AUTH_MODE=token is "
                    "not set (docs/cluster.md); Ray listens on all network interfaces"
                )
            run_tasks(requests, setup_of(job, requests), cluster, callbacks)


def setup_of(job: Job, requests: Sequence[TaskRequest]) -> Setup:
    """What every machine gets; data and files are put into the shared folder, or into Ray's object store."""
    import ray

    cluster, members = job.params.cluster, {name: tuned_member(job.workspace, name) for name in job.params.members}
    is_tuning = requests[0].verb == "tune"
    at_home = {result_folder(job, path) for path in job.path("members").rglob("manifest.json")}
    finished = tuple(sorted(at_home - {request.result_folder for request in requests}))
    data = job.workspace.require(job.path("data", "manifest.json"))
    records = job.prepared.remote_records
    files, start_folder = files_to_send(job.work, data, bool(records), local_files(job.params, members, is_tuning))
    references = {}
    if cluster.shared:
        shared = {name: Path(cluster.shared) / name for name in files}
        missing = [n for n, (digest, _) in files.items() if not shared[n].is_file() or sha256(shared[n]) != digest]
        for name in missing:
            copy_file(files[name][1], shared[name])
        job.echo(f"cluster: data and checkpoints go through {cluster.shared}; {counted(len(missing), 'file')} copied")
    else:
        references = {name: (digest, ray.put(path.read_bytes())) for name, (digest, path) in files.items()}
        size = sum(path.stat().st_size for _, path in files.values())
        job.echo(f"cluster: machines receive what they lack of {len(files)} files ({filesize.decimal(size)})")
    folders = cluster.folder, cluster.shared
    return Setup(*folders, references, start_folder, records, COMMAND, finished)


def deliver_model(job: Job, models: Models, request: TaskRequest, archive: Path) -> str:
    """Install a trained model. A complete earlier one stays in its place until this one is complete."""
    run, requested = models[request.name]
    model = fold_model(run, requested.fold)  # its teachers may have come home since the request
    path = training_path(run.folder, model.manifest)
    write_run_file(run)
    with lock(path.with_suffix(".lock")):
        install(archive, path.parent)
    manifest = read_manifest(path)
    if manifest is None or not Stored(path, model.depends).is_current:
        changes = changed_keys(manifest.depends, model.depends) if manifest else []
        raise UserError(f"{display_path(path.parent)} came home, but is of another run: {'; '.join(changes[:3])}")
    if path != model.manifest:
        replace_model(run.folder, model.manifest)
    return f"train {request.name}: {result_line(job.prepared.competition.metric, manifest)}"


def deliver_views(job: Job, predictions: Mapping[str, Stored], request: TaskRequest, archive: Path) -> str:
    """Install the predictions of a fold model.  predictions: of each task."""
    result = predictions[request.name]
    if job.options.force or not result.is_current:
        result.manifest.unlink(missing_ok=True)
    with lock(result.manifest.with_suffix(".lock")):
        install(archive, result.manifest.parent)
    if not result.is_current:
        raise UserError(f"{display_path(result.manifest.parent)} came home, but is of another model or other views")
    return f"predict {request.name}: done"


def compare_versions(job: Job, warned: set[str], address: str, there: Mapping[str, str]) -> None:
    """Warn of packages that differ from those of this machine: fold models may then differ in the last digits.

    address, there: of a machine where a task has just started.  warned: machines that were warned of, each once.
    """
    here = versions()
    names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    differing = [f"{name} {there.get(name, 'none')}" for name in names]
    if differing and address not in warned:
        warned.add(address)
        job.echo(f"cluster: WARNING {address} has other packages than this machine: {', '.join(differing)}")
