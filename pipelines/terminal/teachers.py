"""The teachers of a student: which of their models are trained, and the soft labels they predict."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from competition.config.errors import UserError
from competition.config.params import ExcludedFolds
from competition.files.manifest import is_current
from competition.workspace.dependencies import (
    is_trained,
    model_path,
    soft_labels_dependencies,
    soft_labels_path,
)
from competition.workspace.runs import Run
from competition.workspace.soft_labels import predict_soft_labels
from pipelines.terminal import hosts
from pipelines.terminal.fold_training import describe_fold
from pipelines.terminal.runner import Computed, InUse, Job
from pipelines.terminal.trainer import open_trainer

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.trainer import Trainer

WAIT_SECONDS = 1.0  # between two looks at what another process computes


def missing_teacher(student: Run, teacher: Run, fold: ExcludedFolds) -> UserError:
    return UserError(
        f"member {student.title} learns from {teacher.title}, whose model {describe_fold(fold)} is missing or was "
        f"trained with other parameters; train it with `make train MEMBER={teacher.name}`"
    )


def update_soft_labels(
    job: Job, student: Run, teacher: Run, folds: Iterable[ExcludedFolds], device: "Device", alive: Callable[[], None]
) -> None:
    """Predict the soft labels of the teacher's models of these folds, unless they are current.

    Each model predicts the rows that it was trained on. The result is stored beside the model.
    Raises UserError if one of the models is missing or out of date.
    """
    trainer: Trainer | None = None  # built for the first fold that needs it
    for fold in folds:
        if not is_trained(teacher, fold):
            raise missing_teacher(student, teacher, fold)
        manifest, depends = soft_labels_path(teacher, fold), soft_labels_dependencies(teacher, fold)
        if hosts.decided(is_current(manifest, depends)):
            continue
        if trainer is None:
            trainer = open_trainer(job, teacher.member, teacher.title, device=device, parts=("train",), alive=alive)
        make = partial(save_soft_labels, trainer, model_path(teacher, fold).parent, fold)
        title = f"train {student.title}: soft labels by {teacher.title} {describe_fold(fold)}"
        while True:  # another `make train` in this folder may predict them now
            try:
                job.cached(title, manifest, depends, make)
                break
            except InUse:
                if hosts.are_joined():
                    raise
                alive()
                time.sleep(WAIT_SECONDS)


def save_soft_labels(trainer: "Trainer", folder: Path, fold: ExcludedFolds) -> Computed:
    """folder: of the teacher's model; the soft labels go to soft/soft.npz in it."""
    from competition.training.checkpoint import load_arrays

    labels = predict_soft_labels(trainer, load_arrays(folder / "weights.npz"), fold)
    path = folder / "soft" / "soft.npz"
    labels.save(path)
    return [path], {"rows": len(labels.ids)}
