"""Experiment trackers: TensorBoard, MLflow and Weights & Biases get what is trained, tuned and blended (parameter `track`).

Each fold model, trial, blend and report is one run of a tracker; those that belong together have the same group. Nothing
here needs a network unless the user's variables name a server. No command line, environment or code is sent, and parameters
are those without secrets. A tracker that fails is left out, with one line; the work goes on without it.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from competition.config.digests import to_plain
from competition.config.errors import how_to_install
from competition.config.params import Params
from competition.config.redaction import redact
from competition.config.secrets import known_secrets
from competition.files.manifest import flattened

STEP_SECONDS = 1.0  # between two values of the loss within an epoch
MOST_PARAMETERS = 100  # of one request to MLflow
LONGEST_VALUE = 500  # characters; what MLflow accepts everywhere


@dataclass(frozen=True)
class Subject:
    """What one run of a tracker is about.  group: of all fold models of a run, or all trials of a study."""

    kind: str  # fold, trial, blend or report
    group: str
    name: str
    parameters: Mapping[str, object]  # may be nested


@dataclass(frozen=True)
class Outcome:
    """The end of a run.  numbers: scores and counts.  texts: digests and other facts.  files: pictures and pages."""

    numbers: Mapping[str, float]
    texts: Mapping[str, str]
    files: Sequence[Path] = ()


class TensorBoardRun:
    """Event files in track/tensorboard/<group>/<name>: `tensorboard --logdir work/<competition>/track/tensorboard`."""

    def __init__(self, folder: Path, project: str, subject: Subject) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        place = folder / "tensorboard" / subject.group / subject.name
        self._writer = EventFileWriter(str(place))
        self._add(hparams_pb(dict(subject.parameters), trial_id=f"{subject.group}/{subject.name}"), 0)

    def log(self, axis: str, number: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(Summary(value=[Summary.Value(tag=f"{axis}/{k}", simple_value=v) for k, v in values.items()]), number)

    def end(self, outcome: Outcome | None) -> None:
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb

        if outcome is not None:
            self.log("result", 0, outcome.numbers)
            lines = [f"| {key} | {value} |" for key, value in outcome.texts.items()]
            lines += [f"| file | {path} |" for path in outcome.files if path.suffix != ".png"]
            self._add(text_pb("result", "\n".join(["| | |", "|---|---|", *lines])), 0)
            for path in (path for path in outcome.files if path.suffix == ".png"):
                width, height = Image.open(path).size
                picture = Summary.Image(
                    encoded_image_string=path.read_bytes(), width=width, height=height, colorspace=3
                )
                self._add(Summary(value=[Summary.Value(tag=path.stem, image=picture)]), 0)
        self._writer.close()

    def _add(self, summary: object, number: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=number, summary=summary))


class MlflowRun:
    """A run below one run for its group, in MLFLOW_TRACKING_URI or else in track/mlflow.db."""

    def __init__(self, folder: Path, project: str, subject: Subject) -> None:
        # A server that does not answer must not hold the training for the minutes that MLflow would wait.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        self._client = MlflowClient(uri or f"sqlite:///{folder.resolve() / 'mlflow.db'}")
        if self._client.get_experiment_by_name(project) is None:
            with suppress(MlflowException):  # another process may create it at the same time
                place = None if uri else (folder.resolve() / "mlflow").as_uri()
                self._client.create_experiment(project, artifact_location=place)
        self._experiment = str(self._client.get_experiment_by_name(project).experiment_id)
        parent = self._run_of(subject.group, {"goldfold.group": subject.group, "goldfold.kind": "group"})
        tags = {"mlflow.parentRunId": parent, "goldfold.group": subject.group, "goldfold.kind": subject.kind}
        self._id = self._run_of(subject.name, tags)
        parameters = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in subject.parameters.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + MOST_PARAMETERS])

    def log(self, axis: str, number: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, [Metric(f"{axis}/{k}", v, now, number) for k, v in values.items()])

    def end(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self.log("result", 0, outcome.numbers)
            for key, value in outcome.texts.items():
                self._client.set_tag(self._id, key, value[:LONGEST_VALUE])
            for path in outcome.files:
                self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, "FINISHED" if outcome is not None else "KILLED")

    def _run_of(self, name: str, tags: Mapping[str, str]) -> str:
        """Id of the unfinished run with this name and these tags, which a killed process may have left, or of a new one."""
        conditions = ["attributes.status = 'RUNNING'", f"attributes.run_name = '{name}'"]
        conditions += [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
        runs = self._client.search_runs([self._experiment], " and ".join(conditions), max_results=1)
        run = runs[0] if runs else self._client.create_run(self._experiment, tags=dict(tags), run_name=name)
        return str(run.info.run_id)


class WandbRun:
    """A run of Weights & Biases: with WANDB_MODE, else online with WANDB_API_KEY, else in offline files under track/wandb."""

    def __init__(self, folder: Path, project: str, subject: Subject) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        private = wandb.Settings(  # neither command line, code and output nor the machine's data
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True,
            x_disable_machine_info=True, x_save_requirements=False, init_timeout=30,
        )  # fmt: skip
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=project, group=subject.group, name=f"{subject.group} {subject.name}", job_type=subject.kind,
            config=dict(subject.parameters), dir=str(folder), mode=mode, reinit="create_new", settings=private,
        )  # fmt: skip
        for axis in ("step", "epoch"):
            self._run.define_metric(f"{axis}/*", step_metric=axis)

    def log(self, axis: str, number: int, values: Mapping[str, float]) -> None:
        self._run.log({axis: number, **{f"{axis}/{key}": value for key, value in values.items()}})

    def end(self, outcome: Outcome | None) -> None:
        import wandb

        if outcome is not None:
            self._run.summary.update({f"result/{key}": value for key, value in outcome.numbers.items()})
            self._run.summary.update(dict(outcome.texts))
            for path in outcome.files:
                shown = wandb.Image(str(path)) if path.suffix == ".png" else wandb.Html(str(path), inject=False)
                self._run.log({path.stem: shown})
        self._run.finish(exit_code=0 if outcome is not None else 1)


# One run of one tracker. log(axis, number, values) adds values to curves.  axis: "step", "epoch", or "result" of what is known at
# the end.  number: on this axis.  end(outcome) completes the run; None = it did not reach its end: stopped, or ended by an error.
TrackerRun = TensorBoardRun | MlflowRun | WandbRun
TRACKERS: dict[str, Callable[[Path, str, Subject], TrackerRun]] = {
    "tensorboard": TensorBoardRun,
    "mlflow": MlflowRun,
    "wandb": WandbRun,
}


class Tracked(AbstractContextManager["Tracked"]):
    """One run in all trackers of `track`; if its block ends without a call of `end`, the run counts as ended early."""

    def __init__(self, params: Params, work: Path, subject: Subject, show: Callable[[str], None]) -> None:
        """work: work/<competition>.  show: gets the line about a tracker that failed."""
        self.runs: dict[str, TrackerRun] = {}  # of the trackers that take what is logged
        self._show, self._known = show, known_secrets(params)
        self._logged = float("-inf")  # when the last step was
        self._epochs: set[int] = set()  # that are logged
        folder, project = work / "track", params.competition.name
        # By dotted names; a list is its text.
        values = flattened(to_plain(subject.parameters)) if subject.parameters else {}
        texts = {key: one if isinstance(one, bool | int | float | str) else str(one) for key, one in values.items()}
        subject = replace(subject, parameters=texts)
        for name in params.track:
            folder.mkdir(parents=True, exist_ok=True)
            self._try(name, lambda: self.runs.update({name: TRACKERS[name](folder, project, subject)}))  # noqa: B023

    def step(self, step: int, loss: float) -> None:
        """The loss after a training step; most steps are left out."""
        now = time.monotonic()
        if self.runs and now - self._logged >= STEP_SECONDS:
            self._logged = now
            self.log("step", step, {"loss": loss})

    def epoch(self, epoch: Mapping[str, float | None]) -> None:
        """The fields of training.trainer.Epoch; an epoch that is logged already is left out."""
        number = int(epoch["epoch"] or 0)
        if number not in self._epochs:
            self._epochs.add(number)
            self.log("epoch", number, {key: value for key, value in epoch.items() if key != "epoch"})

    def log(self, axis: str, number: int, values: Mapping[str, float | None]) -> None:
        """Add those values to curves that are finite numbers.  axis, number: see TrackerRun."""
        finite = {key: float(value) for key, value in values.items() if value is not None and isfinite(value)}
        for name, run in list(self.runs.items()):
            self._try(name, lambda: run.log(axis, number, finite))  # noqa: B023

    def end(self, outcome: Outcome | None) -> None:
        """Complete the run in every tracker."""
        for name, run in list(self.runs.items()):
            self._try(name, lambda: run.end(outcome))  # noqa: B023
        self.runs.clear()

    def __exit__(self, *_: object) -> None:
        self.end(None)

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever a tracker does, training goes on
            self.runs.pop(name, None)
            missing = isinstance(error, ImportError)
            reason = f"it is not installed; {how_to_install(name)}" if missing else f"{type(error).__name__}: {error}"
            self._show(f"track: {name} is left out, {redact(reason, self._known).splitlines()[0]}")
