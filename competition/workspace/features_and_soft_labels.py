"""What fold models learn from besides images and labels: features of frozen networks, and soft labels of teachers.

Features are stored under what they depend on and are shared by all members, folds and trials. Soft labels are the
probabilities that a student's teachers predict for the rows it is trained on. They come from the teachers' models of the same fold,
which were trained on those rows and not on the student's held-out rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.config.params import Member
from competition.ensemble.stored_predictions import IDENTITY, ViewPredictions
from competition.files.manifest import Stored
from competition.training.versions import FEATURES, PREDICTION
from competition.workspace.dependencies import fold_names, soft_labels
from competition.workspace.runs import Run
from competition.workspace.studies import DIGITS, network_dependencies
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from competition.training.trainer import Trainer


@dataclass(frozen=True)
class FeatureTable(Stored):
    """The features of the images of one part of the index under one view: features.npy, (N, F) float16 in index order."""

    part: str  # train, external, test
    view: str

    @property
    def file(self) -> Path:
        return self.manifest.with_name("features.npy")


def networks_of(workspace: Workspace, member: Member) -> list[Member]:
    """The members whose networks give the features of a frozen-feature member: itself first."""
    assert member.head is not None
    return [member, *(workspace.params.members[name] for name in member.head.also)]


def feature_table(workspace: Workspace, network: Member, part: str, view: str) -> FeatureTable:
    """Where the features of a network are. Neither labels nor folds take part: other ones need no other features."""
    depends = {
        "images": workspace.prepared.image_digests.get(part, ""),
        "fit": workspace.params.prepare.fit,
        "part": part,
        "view": view,
        **network_dependencies(network),
        "feature_version": FEATURES,
        "prediction_version": PREDICTION,
        **workspace.params.plugins.dependencies(MODELS=(network.architecture,), VIEWS=view.split("+")),
    }
    path = workspace.folder / "features" / digest_of(depends)[:DIGITS] / "manifest.json"
    return FeatureTable(path, depends, part, view)


def missing_tables(
    workspace: Workspace, network: Member, parts: Sequence[str], views: Sequence[str]
) -> dict[str, list[FeatureTable]]:
    """Part -> its tables that are not complete."""
    tables = {part: [feature_table(workspace, network, part, view) for view in views] for part in parts}
    return {part: absent for part, ts in tables.items() if (absent := [t for t in ts if not t.is_current])}


def load_soft_labels(run: Run, fold: int) -> ViewPredictions:
    """Mean over the teachers, for every readable training row of the model of `run` without `fold`.

    A teacher with several seeds counts as one: the mean over its runs.
    """
    predictions = [
        [ViewPredictions.load(soft_labels(teacher, fold).manifest.with_name("soft.npz")) for teacher in teachers]
        for teachers in run.teachers.values()
    ]
    first = predictions[0][0]
    means = [np.mean([each.at(first.ids).view(IDENTITY) for each in runs], axis=0) for runs in predictions]
    return ViewPredictions(first.ids, (IDENTITY,), np.mean(means, axis=0)[:, None], first.target)


def missing_teacher(student: Run, teacher: Run, fold: int) -> UserError:
    """The error for a teacher model that is not current."""
    return UserError(
        f"member {student.title} learns from {teacher.title}, whose model of {fold_names([fold])} is missing or was "
        f"trained with other parameters; train it with `make train MEMBER={teacher.name}`"
    )


def save_soft_labels(trainer: "Trainer", model: Path, fold: int, folder: Path) -> tuple[list[Path], dict[str, int]]:
    """Predict the rows that a teacher model was trained on and write them to soft.npz in `folder`.

    trainer: of the teacher.  model: its folder.  Returns the file, and the number of rows for the manifest.
    """
    from competition.training.checkpoint import load_arrays

    images = trainer.images
    rows = np.flatnonzero((images.folds >= 0) & (images.folds != fold) & images.readable)
    labels = trainer.predict(load_arrays(model / "weights.npz"), images, rows, [IDENTITY])
    path = folder / "soft.npz"
    labels.save(path)
    return [path], {"rows": len(labels.ids)}
