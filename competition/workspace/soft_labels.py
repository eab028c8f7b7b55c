"""Soft labels: the probabilities that a student's teachers predict for the rows it is trained on.

No teacher model was trained on the student's held-out rows (dependencies.teacher_models):

    same_fold   every row is predicted by the teacher's model of the student's fold, which was trained on that row
    nested      a row of fold j is predicted by the teacher's model trained without fold j and the student's fold
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.errors import UserError
from competition.config.params import ExcludedFolds
from competition.ensemble.predictions import Predictions, ViewPredictions, concatenate_folds
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import (
    describe_fold,
    is_nested,
    model_manifest_path,
    soft_labels_path,
    teacher_models,
)
from competition.workspace.runs import Run

if TYPE_CHECKING:
    from competition.training.scorer import FoldScorer

VIEW = "identity"


def load_soft_labels(prepared: Prepared, run: Run, fold: ExcludedFolds) -> Predictions:
    """Mean over the teachers, for every readable training row of the model of `run` without `fold`.

    A teacher with several seeds counts as one: the mean over its runs.
    """
    predictions = [
        [_teacher_predictions(prepared, run, teacher, fold) for teacher in teachers]
        for teachers in run.teachers.values()
    ]
    first = predictions[0][0]
    means = [np.mean([each.at(first.ids).view(VIEW) for each in runs], axis=0) for runs in predictions]
    return Predictions(first.ids, np.mean(means, axis=0), first.target)


def _teacher_predictions(prepared: Prepared, student: Run, teacher: Run, fold: ExcludedFolds) -> ViewPredictions:
    """Predictions of one run of a teacher for the training rows of the student's model."""
    if not is_nested(student.member, fold):
        return ViewPredictions.load(soft_labels_path(teacher, fold).with_name("soft.npz"))
    train = prepared.part("train")
    fold_by_id = dict(zip(train["id"].astype(str), train["fold"], strict=True))
    parts = []
    for pair in teacher_models(student.member, student.folds, fold):
        held_out = ViewPredictions.load(model_manifest_path(teacher, pair).with_name("oof.npz"))
        parts.append(held_out.at(np.array([id_ for id_ in held_out.ids if fold_by_id[id_] != fold], str)))
    return concatenate_folds(parts)


def missing_teacher(student: Run, teacher: Run, fold: ExcludedFolds) -> UserError:
    """The error for a teacher model that is not current."""
    return UserError(
        f"member {student.title} learns from {teacher.title}, whose model {describe_fold(fold)} is missing or was "
        f"trained with other parameters; train it with `make train MEMBER={teacher.name}`"
    )


def save_soft_labels(trainer: "FoldScorer", folder: Path, fold: ExcludedFolds) -> tuple[list[Path], dict[str, int]]:
    """Predict the rows that a teacher model was trained on and write them to soft/soft.npz in its folder.

    trainer: of the teacher.  Returns the file, and the number of rows for the manifest.
    """
    from competition.training.checkpoint import load_arrays

    images = trainer.images
    rows = np.flatnonzero((images.folds >= 0) & ~np.isin(images.folds, fold) & images.readable)
    labels = trainer.predict(load_arrays(folder / "weights.npz"), images, rows, [VIEW])
    path = folder / "soft" / "soft.npz"
    labels.save(path)
    return [path], {"rows": len(labels.ids)}
