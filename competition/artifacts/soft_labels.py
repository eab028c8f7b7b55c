"""Soft labels: the probabilities that a student's teachers give to the rows it learns from.

No teacher model has learned from the student's held-out rows (lineage.teacher_models):

    same_fold   the teachers' model of the same fold says them, of rows that it has learned from itself
    nested      for a row of fold j, the teachers' model without fold j and without the student's fold
"""

from pathlib import Path
from typing import Any

import numpy as np

from competition.artifacts.dependencies import is_nested, model_manifest, soft_labels_manifest, teacher_models
from competition.config.params import ExcludedFolds, Member
from competition.data.prepared import Prepared
from competition.ensemble.predictions import Predictions, ViewPredictions, concatenate_folds

VIEW = "identity"


def load_soft_labels(work: Path, prepared: Prepared, folds: int, member: Member, fold: ExcludedFolds) -> Predictions:
    """The mean over the teachers, for every readable training row of a fold model of `member`."""
    tables = [_of_teacher(work, prepared, folds, member, name, fold) for name in member.teacher]
    ids = tables[0].ids
    return Predictions(ids, np.mean([table.at(ids).view(VIEW) for table in tables], axis=0))


def _of_teacher(
    work: Path, prepared: Prepared, folds: int, member: Member, name: str, fold: ExcludedFolds
) -> ViewPredictions:
    if not is_nested(member, fold):
        return ViewPredictions.load(soft_labels_manifest(work, name, fold).with_name("soft.npz"))
    train = prepared.part("train")
    fold_of = dict(zip(train["id"].astype(str), train["fold"], strict=True))
    parts = []
    for pair in teacher_models(member, folds, fold):
        held_out = ViewPredictions.load(model_manifest(work, name, pair).with_name("oof.npz"))
        parts.append(held_out.at(np.array([each for each in held_out.ids if fold_of[each] != fold], str)))
    return concatenate_folds(parts)


def predict_soft_labels(trainer: Any, weights: dict[str, np.ndarray], fold: ExcludedFolds) -> ViewPredictions:
    """What a teacher (its Trainer, the weights of one of its models) says of the rows that this model learned from."""
    images = trainer.images
    rows = np.flatnonzero((images.folds >= 0) & ~np.isin(images.folds, fold) & images.readable)
    return trainer.predict(weights, images, rows, [VIEW])
