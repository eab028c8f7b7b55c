"""The computing process on a machine of a cluster: trains, predicts or tunes one member, one task after the other.

Started by competition.cluster.node: settings as JSON in the last argument, tasks as JSON lines on stdin, events as JSON
lines on a pipe. What it prints goes to a log file of the machine.
"""

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from competition.cluster import copies
from competition.cluster.project import PARAMS
from competition.config.errors import UserError
from competition.config.params import ExcludedFolds
from competition.config.params_file import load_params
from competition.ensemble.metrics import metric_named
from competition.ensemble.settings import validate_params
from competition.files.manifest import Manifest, changed_keys, write_json, write_manifest
from competition.images.pixels import is_streamed
from competition.workspace.dependencies import (
    fold_model_path,
    fold_views_path,
    is_nested,
    model_path,
    views_dependencies,
)
from competition.workspace.runs import Run, stored_runs
from competition.workspace.soft_labels import load_soft_labels
from competition.workspace.studies import tuning_dependencies
from competition.workspace.study_settings import study_settings
from competition.workspace.study_worker import storage_of, work_on_study
from competition.workspace.workspace import Workspace
from pipelines.terminal.backend import start_tensorflow
from pipelines.terminal.cluster_tuning import with_storage
from pipelines.terminal.device_retries import train_with_retries
from pipelines.terminal.fold_prediction import measure_views, predict_fold
from pipelines.terminal.fold_training import describe_fold, remove_checkpoints, train_model
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job
from pipelines.terminal.teachers import update_soft_labels
from pipelines.terminal.trainer import open_trainer, open_trial_runner, read_images, start_device

if TYPE_CHECKING:
    from competition.images.labelled_images import Images
    from competition.training.trainer import Trainer
    from competition.tuning.trials import TrialRunner

PR_SET_PDEATHSIG = 1  # linux/prctl.h
EVENT_SECONDS = 1.0  # between two events of progress
GPU_SHARE = 0.9  # of a shared GPU's memory that JAX processes take together


class Events:
    """Sends events to the machine's worker."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)
        self._last = 0.0

    def send(self, event: str, **values: Any) -> None:
        self._file.write(json.dumps({"event": event, **values}) + "\n")

    def progress(self, step: int, steps: int, text: str) -> None:
        if step == steps or time.monotonic() - self._last >= EVENT_SECONDS:
            self._last = time.monotonic()
            self.send("progress", step=step, steps=steps, text=text)


def main() -> None:
    settings = json.loads(sys.argv[-1])
    bind_to_parent(settings["parent"])
    with contextlib.suppress(OSError):  # only root may lower it; docs/cluster.md starts Ray so that it is not raised
        os.setpriority(os.PRIO_PROCESS, 0, settings["niceness"])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if 0 < settings["gpus"] < 1:
        os.environ["XLA_CLIENT_MEM_FRACTION"] = f"{GPU_SHARE * settings['gpus']:.3f}"
    events, slot = Events(settings["events"]), None
    for request in requests():
        try:
            slot = slot or SLOTS[settings["verb"]](open_job(settings), settings, events)
            manifest = slot.do(request)
            events.send("done", unit=request["unit"], seconds=manifest.result.get("seconds", 0.0))
        except Exception as error:
            events.send("failed", message=" ".join(str(error).split())[:500], kinds=kinds_of(error))
            if not isinstance(error, UserError):
                traceback.print_exc()
                slot = None  # its device may be lost


def bind_to_parent(parent: int) -> None:
    """End this process when its parent ends, however that ends. Linux; elsewhere the end of stdin does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def requests() -> Iterator[dict[str, Any]]:
    """The tasks from stdin. Its end ends the process at once: nobody waits for the result."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(lines.get())


def kinds_of(error: BaseException | None) -> list[str]:
    """Names of the classes of an error and of its causes."""
    if error is None:
        return []
    return [kind.__name__ for kind in type(error).__mro__] + kinds_of(error.__cause__)


def open_job(settings: Mapping[str, Any]) -> Job:
    """The job on this machine's folders, with its data complete."""
    path, work = Path(settings["project"]) / PARAMS, Path(settings["root"]) / "work"
    params = validate_params(load_params(path))
    if settings["shared"]:
        copies.fetch_data(settings["shared"], work, settings["files"])
    options = Options(params=path, work=work, submissions=Path(settings["root"]) / "submissions")
    job = Job(Workspace(work / params.competition.name, params), options, options.submissions)
    if settings["records"]:
        write_json(job.path("resolve.json"), {"path": settings["records"]})
    return job


class Slot:
    """One member on this machine's devices; the trainer stays open between tasks."""

    def __init__(self, job: Job, settings: Mapping[str, Any], events: Events) -> None:
        self.job, self.settings, self.events = job, settings, events
        self.trainer: Trainer | None = None

    def do(self, request: Mapping[str, Any]) -> Manifest:
        """Compute what the request asks for, unless this machine has it already."""
        raise NotImplementedError

    def run_of(self, request: Mapping[str, Any]) -> Run:
        """The run with the digest that the driver computed. Raises UserError if this machine computes another one."""
        own = self.job.workspace.runs_of(self.settings["member"])
        stored = stored_runs(self.job.work, self.settings["member"])
        for run in [*own, *stored]:
            if run.digest == request["run"]:
                return run
        changes = changed_keys(request["depends"], own[0].depends)
        raise UserError(
            f"this machine would train another run ({'; '.join(changes[:3])}): its packages or files differ"
        )


class Training(Slot):
    _alive: Callable[[], None]  # of the task that is trained now
    _run_digest = ""  # of the open trainer

    def do(self, request: Mapping[str, Any]) -> Manifest:
        """Train one model of a run, from a checkpoint of this or another machine if there is one."""
        run, fold = self.run_of(request), request["fold"]
        fold = fold if isinstance(fold, int) else (fold[0], fold[1])
        path = model_path(run, fold)
        if request["force"]:
            path.unlink(missing_ok=True)
        remote = f"{self.settings['checkpoints']}/{request['unit']}/checkpoints" if self.settings["checkpoints"] else ""
        if remote:
            start_tensorflow(self.job)
            if copies.fetch_checkpoints(remote, path.parent / "checkpoints"):
                print(f"{run.title} {describe_fold(fold)}: continues from a checkpoint of another machine", flush=True)
        done: list[Manifest] = []
        train_with_retries(self.job, run.title, lambda alive: done.append(self._train(run, fold, remote, alive)))
        remove_checkpoints(path.parent)
        if remote:
            copies.remove_checkpoints(remote)
        return done[0]

    def _train(self, run: Run, fold: ExcludedFolds, remote: str, alive: Any) -> Manifest:
        from competition.training.input_stall import InputStallDetector, StepTimes

        def progress(step: int, steps: int, text: str) -> None:
            alive()
            self.events.progress(step, steps, text)

        def report_stall(times: StepTimes) -> None:
            reason = times.describe(run.member.train, is_streamed(images.pixels))
            self.events.send("line", text=f"{run.title}: {reason}")

        def saved(folder: Path) -> None:
            if remote:
                copies.publish_checkpoints(folder, remote)

        self._alive = alive
        try:
            trainer = self._opened(run, fold)
            images = trainer.images
            detector = InputStallDetector(report_stall)
            return train_model(self.job, trainer, run, fold, progress, detector, saved)
        except UserError:
            raise
        except Exception:
            self.trainer = None  # the device may be lost
            raise

    def _opened(self, run: Run, fold: ExcludedFolds) -> "Trainer":
        """The trainer of this run. Another seed has other initial weights, so its run gets a trainer of its own."""
        device, alive = start_device(self.job), lambda: self._alive()
        for teacher in [teacher for runs in run.teachers.values() for teacher in runs]:
            same_fold = [] if is_nested(run.member, fold) else [fold]
            update_soft_labels(self.job, run, teacher, same_fold, device, alive)
        if self.trainer is None or self._run_digest != run.digest:
            self.trainer = None  # frees its images first
            soft = partial(load_soft_labels, self.job.prepared, run) if run.member.teacher else None
            self.trainer = open_trainer(self.job, run.member, run.title, device=device, soft_labels=soft, alive=alive)
            self._run_digest = run.digest
            size = prod(self.trainer.images.pixels.shape) / 1e9
            print(
                f"{run.title}: {device.replicas} x {device.kind} ({device.reason}), {size:.2f} GB of images", flush=True
            )
        return self.trainer


class Prediction(Slot):
    test: "Images"
    transforms: Mapping[str, float]

    def do(self, request: Mapping[str, Any]) -> Manifest:
        """Predict by one fold model, whose folder is on this machine already."""
        run, fold = self.run_of(request), int(request["fold"])
        if self.trainer is None:
            self._open(run)
        manifest, model = fold_views_path(run, self.job.params, fold), fold_model_path(run, fold).parent
        depends = views_dependencies(run, self.job.params, fold)
        if request["force"]:
            manifest.unlink(missing_ok=True)
        self.events.send("progress", step=0, steps=1, text="predicts")
        make = partial(predict_fold, self.trainer, self.test, model, manifest.parent, fold, self.transforms)  # type: ignore[arg-type]
        return self.job.cached(f"predict {run.title} {describe_fold(fold)}", manifest, depends, make)

    def _open(self, run: Run) -> None:
        device, views = start_device(self.job), self.job.params.predict.views
        self.trainer = open_trainer(self.job, run.member, run.title, device=device, parts=("train",))
        self.test = read_images(self.job, run.member, ("test",), run.title)
        self.transforms = measure_views(self.trainer, views)


class Tuning(Slot):
    """A worker of a study. Networks that it has compiled stay for the worker after it."""

    runner: "TrialRunner | None" = None

    def do(self, request: Mapping[str, Any]) -> Manifest:
        """Run trials of the study until none is left. Raises UserError if this machine would work on another study."""
        from competition.tuning.study import open_study

        started, name = time.monotonic(), self.settings["member"]
        job = with_storage(self.job, request["storage"])
        job = replace(job, options=replace(job.options, workers=request["workers"]))
        settings = study_settings(job.workspace, name, max(job.options.workers, 1))
        if settings.name != request["study"]:
            changes = changed_keys(request["depends"], tuning_dependencies(job.workspace, name))
            raise UserError(
                f"this machine would work on another study ({'; '.join(changes[:3])}): its packages or files differ"
            )
        self.runner = self.runner or open_trial_runner(job, name)
        self.events.send("progress", step=0, steps=1, text="runs trials")
        study = open_study(storage_of(job.workspace, name), settings)
        sign = metric_named(job.prepared.competition.metric).sign
        show = lambda line: self.events.send("line", text=f"tune {name}: {line}")  # noqa: E731
        work_on_study(study, settings, self.runner, sign, show)
        seconds = {"seconds": round(time.monotonic() - started, 1)}
        return write_manifest(job.options.work / request["unit"] / "manifest.json", {}, [], seconds, {})


SLOTS = {"train": Training, "predict": Prediction, "tune": Tuning}

if __name__ == "__main__":
    main()
