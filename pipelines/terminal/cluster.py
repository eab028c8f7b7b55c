"""Train and predict on the machines of a Ray cluster: what is missing goes out, sealed results come home."""

import hashlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from competition.cluster import connection, copies, node
from competition.cluster.driver import run_works
from competition.cluster.project import data_files, packed_project
from competition.cluster.schedule import Task
from competition.cluster.work import Callbacks, Setup, Work
from competition.config.errors import UserError
from competition.config.params import ExcludedFolds, Needs
from competition.files.manifest import changed_keys, files_intact, is_current, read_manifest
from competition.files.replacement import again_path, replace_model
from competition.kernels.results import install
from competition.preflight.planning import load_of, sizes_of
from competition.workspace.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    fold_views_path,
    is_trained,
    model_path,
    nested_teachers,
    teacher_models,
    views_dependencies,
)
from competition.workspace.runs import Run
from pipelines.terminal.backend import start_tensorflow
from pipelines.terminal.cluster_progress import Screen
from pipelines.terminal.fold_training import describe_fold, result_line
from pipelines.terminal.output import display_path
from pipelines.terminal.runner import Job, lock
from pipelines.terminal.selection import selected_folds
from pipelines.terminal.teachers import missing_teacher
from pipelines.terminal.versions import RECORDED_PACKAGES, ROOT, versions

COMMAND = ("-u", "-m", "pipelines.terminal.cluster_child")
SECONDS_PER_PIXEL = 1.5e-6  # of a training step, for members without a measured time; only ratios matter
RESULT_RATIO = 200.0  # largest ratio of unpacked to packed bytes of a result
Deliver = Callable[[Work, Path], str]  # installs a pack at home and returns the line for the screen


def train_on_cluster(job: Job, names: Sequence[str]) -> None:
    """Train the missing fold models of these members, teachers before students."""
    models: dict[str, tuple[Run, ExcludedFolds]] = {}
    works: dict[str, Work] = {}
    for name in names:
        for run in job.workspace.runs_of(name):
            wanted = list(selected_folds(job))
            stale = [fold for fold in wanted if job.options.force or not is_trained(run, fold)]
            if len(stale) < len(wanted):
                job.echo(f"train {run.title}: {len(wanted) - len(stale)} of {len(wanted)} fold models current")
            for teacher, pair in nested_teachers(job.params, {name: stale}):
                for teacher_run in job.workspace.runs_of(teacher):
                    if not is_trained(teacher_run, pair):
                        add_model(job, teacher_run, pair, works, models)
            for fold in stale:
                add_model(job, run, fold, works, models)
    run_on_cluster(job, "train", list(works.values()), partial(deliver_model, job, models))


def add_model(
    job: Job, run: Run, fold: ExcludedFolds, works: dict[str, Work], models: dict[str, tuple[Run, ExcludedFolds]]
) -> None:
    """Add the task of one model. Raises UserError if a teacher's model is neither there nor trained before it."""
    name, inputs, after = f"{run.title} {describe_fold(fold)}", [], []
    for teacher in [teacher for runs in run.teachers.values() for teacher in runs]:
        for excluded in teacher_models(run.member, run.folds, fold):
            inputs.append(unit_of(job, model_path(teacher, excluded).parent))
            teacher_task = f"{teacher.title} {describe_fold(excluded)}"
            if teacher_task in works:
                after.append(teacher_task)
            elif not is_trained(teacher, excluded):
                raise missing_teacher(run, teacher, excluded)
    task = Task(name, run.name, fold_model_seconds(job, run), frozenset(after))
    request = request_of(job, run, fold, model_path(run, fold).parent)
    works[name], models[name] = Work(task, request["unit"], request, tuple(inputs)), (run, fold)


def predict_on_cluster(job: Job, stale: Sequence[tuple[Run, Mapping[int, Any]]]) -> None:
    """Predict by the fold models of each run that have no current predictions."""
    works, models = [], {}
    for run, folds in stale:
        for fold in folds:
            name, folder = f"{run.title} {describe_fold(fold)}", fold_model_path(run, fold).parent
            request = request_of(job, run, fold, fold_views_path(run, job.params, fold).parent)
            task = Task(name, run.name, fold_model_seconds(job, run) / 10)
            works.append(Work(task, request["unit"], request, (unit_of(job, folder),), keeps_checkpoints=False))
            models[name] = run, fold
    run_on_cluster(job, "predict", works, partial(deliver_views, job, models))


def request_of(job: Job, run: Run, fold: ExcludedFolds, folder: Path) -> dict[str, Any]:
    """What a machine is asked for: the model or the predictions of one fold, in this folder."""
    wanted = {"run": run.digest, "depends": dict(run.depends), "fold": fold, "force": job.options.force}
    return {**wanted, "unit": unit_of(job, folder)}


def run_on_cluster(job: Job, verb: str, works: Sequence[Work], deliver: Deliver) -> None:
    """Connect, check the machines, run all tasks and install each result as it comes."""
    if not works:
        return
    folder = job.path("cluster")
    folder.mkdir(parents=True, exist_ok=True)
    settings = job.params.cluster
    needs = {work.task.member: settings.members.get(work.task.member, settings.needs) for work in works}
    with lock(folder / "driver.lock"), Screen(verb) as screen:

        def print_line(line: str) -> None:
            screen.clear()
            job.echo(line)

        ray = connection.connect(job.options.cluster)
        try:
            check_machines(job, ray, needs, print_line)
            setup = setup_of(job, verb, needs)
            warned: set[str] = set()

            def deliver_pack(work: Work, digest: str, data: bytes) -> None:
                if hashlib.sha256(data).hexdigest() != digest:
                    raise UserError(f"{work.unit} was damaged on its way; run the same command again")
                with tempfile.NamedTemporaryFile(dir=folder, suffix=".pack") as file:
                    Path(file.name).write_bytes(data)
                    print_line(deliver(work, Path(file.name)))

            compare = partial(compare_versions, warned, print_line)
            callbacks = Callbacks(partial(pack_unit, job), deliver_pack, print_line, screen.show, compare)
            with terminated():
                run_works(ray, setup, works, callbacks, settings.public)
        finally:
            if settings.wait:
                connection.request_machines(ray, {})
            ray.shutdown()


def check_machines(job: Job, ray: Any, needs: Mapping[str, Needs], print_line: Callable[[str], None]) -> None:
    """Show the machines. Raises UserError for public addresses, and unless some machine can take each member."""
    machines = connection.alive_machines(ray)
    connection.check_addresses(machines, job.params.cluster.public)
    addresses = ", ".join(machine.address for machine in machines[:4]) + (" ..." if len(machines) > 4 else "")
    print_line(f"cluster: {len(machines)} machines ({addresses})")
    if os.environ.get("RAY_AUTH_MODE") != "token":
        print_line(
            "cluster: WARNING whoever reaches Ray's ports on these machines runs code on them, because RAY_AUTH_MODE=token is "
            "not set (docs/cluster.md); Ray listens on all network interfaces"
        )
    if job.params.cluster.wait:
        connection.request_machines(ray, needs)
    else:
        connection.check_needs(machines, needs)


def setup_of(job: Job, verb: str, needs: Mapping[str, Needs]) -> Setup:
    params = job.params
    is_tuning = verb == "tune"  # of the members as they are in the file
    members = {
        name: member if is_tuning else job.workspace.tuned_member(name) for name, member in params.members.items()
    }
    project, digest = packed_project(ROOT, params, members, is_tuning)
    data = job.workspace.require(job.path("data", "manifest.json"), "download")
    files = data_files(job.work, data, bool(job.prepared.remote_records))
    shared = params.cluster.shared.rstrip("/") or params.storage.bucket.rstrip("/")
    if shared:
        start_tensorflow(job)
        copied = copies.publish_data(shared, files)
        job.echo(
            f"cluster: data and checkpoints go through {shared}"
            + (f"; {copied} files of data copied" if copied else "")
        )
    settings = {
        "verb": verb,
        "shared": shared,
        "files": {name: digest for name, (digest, _) in files.items()} if shared else {},
        "checkpoints": f"{shared}/{params.competition.name}/checkpoints" if shared else "",
        "records": job.prepared.remote_records,
    }
    limits = params.cluster
    return Setup(
        project,
        digest,
        {} if shared else files,
        RECORDED_PACKAGES,
        limits.folder,
        COMMAND,
        settings,
        needs,
        limits.retries,
        limits.wait,
    )


def unit_of(job: Job, folder: Path) -> str:
    """A result folder relative to work/."""
    return folder.relative_to(job.work.parent).as_posix()


def pack_unit(job: Job, unit: str) -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory(dir=job.path("cluster")) as temporary:
        return node.packed(unit, job.work.parent / unit, Path(temporary))


def deliver_model(job: Job, models: Mapping[str, tuple[Run, ExcludedFolds]], work: Work, pack: Path) -> str:
    """Install a trained model. A complete earlier one stays in its place until this one is complete."""
    run, fold = models[work.task.name]
    target, depends = model_path(run, fold), fold_model_dependencies(run, fold)
    previous = read_manifest(target)
    trained_before = previous is not None and files_intact(target, previous)
    path = again_path(run.folder, target) if trained_before else target
    job.begin_run(run)
    unpack(pack, path)
    manifest = read_manifest(path)
    if manifest is None or not is_current(path, depends):
        changes = changed_keys(manifest.depends, depends) if manifest else []
        raise UserError(f"{display_path(path.parent)} came home, but is of another run: {'; '.join(changes[:3])}")
    if trained_before:
        replace_model(run.folder, target)
    return f"train {work.task.name}: {result_line(job.prepared.competition.metric, manifest)}"


def deliver_views(job: Job, models: Mapping[str, tuple[Run, int]], work: Work, pack: Path) -> str:
    """Install the predictions of a fold model."""
    run, fold = models[work.task.name]
    path, depends = fold_views_path(run, job.params, fold), views_dependencies(run, job.params, fold)
    if job.options.force or not is_current(path, depends):
        path.unlink(missing_ok=True)
    unpack(pack, path)
    if not is_current(path, depends):
        raise UserError(f"{display_path(path.parent)} came home, but is of another model or other views")
    return f"predict {work.task.name}: done"


def unpack(pack: Path, manifest: Path) -> None:
    """Install a result where its manifest belongs."""
    manifest.parent.mkdir(parents=True, exist_ok=True)
    with lock(manifest.with_suffix(".lock")):
        install(pack, manifest.parent, RESULT_RATIO)


def fold_model_seconds(job: Job, run: Run) -> float:
    """Estimated seconds of training: of the run's other fold models, else by `make plan`, else in proportion to the pixels."""
    manifests = [read_manifest(path) for path in run.folder.glob("fold*/manifest.json")]
    seconds = [float(m.result["seconds"]) for m in manifests if m is not None and "seconds" in m.result]
    if seconds:
        return sum(seconds) / len(seconds)
    sizes = sizes_of(job.path("data"), job.params)
    load = load_of(run.member, job.params, run.name, sizes, 1)
    try:
        plan = json.loads(job.path("plan.json").read_text(encoding="utf-8"))
        return float(plan["members"][run.name]["train"]) / load.runs
    except (OSError, ValueError, KeyError, TypeError):
        return load.steps * run.member.train.batch * run.member.image_size**2 * SECONDS_PER_PIXEL


def compare_versions(
    warned: set[str], print_line: Callable[[str], None], address: str, there: Mapping[str, str]
) -> None:
    """Warn of packages that differ from those of this machine: the fold models may then differ in the last digits."""
    here = versions()
    names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    differing = [f"{name} {there.get(name, 'none')}" for name in names]
    if differing and address not in warned:
        warned.add(address)
        print_line(f"cluster: WARNING {address} has other packages than this machine: {', '.join(differing)}")


@contextmanager
def terminated() -> Iterator[None]:
    """SIGTERM acts as Ctrl-C in this block, with the exit code of SIGTERM."""
    received: list[int] = []

    def stop(number: int, _: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
