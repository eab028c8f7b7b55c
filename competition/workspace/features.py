"""Stored features of frozen-feature members: what they depend on and where they are, shared by all members, folds and trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.digests import digest_of
from competition.config.params import Member
from competition.files.manifest import is_current
from competition.training.versions import PREDICTION
from competition.workspace.studies import DIGITS, network_dependencies, plugins_entry
from competition.workspace.workspace import Workspace


@dataclass(frozen=True)
class FeatureTable:
    """The features of the images of one part of the index under one view."""

    part: str  # train, external, test
    view: str
    path: Path  # of the manifest, beside features.npy: (N, F) float16 in index order
    depends: dict[str, Any]

    @property
    def file(self) -> Path:
        return self.path.with_name("features.npy")

    @property
    def is_current(self) -> bool:
        return is_current(self.path, self.depends)

    def load(self) -> np.ndarray:
        """(N, F) float16, memory-mapped."""
        table: np.ndarray = np.load(self.file, mmap_mode="r", allow_pickle=False)
        return table


def networks_of(workspace: Workspace, member: Member) -> list[Member]:
    """The members whose networks give the features of a frozen-feature member: itself first."""
    assert member.head is not None
    return [member, *(workspace.params.members[name] for name in member.head.also)]


def feature_table(workspace: Workspace, network: Member, part: str, view: str) -> FeatureTable:
    """Where the features of a network are. Nothing that is fitted takes part: a label changes no feature."""
    depends = {
        "data": workspace.prepared.digest,
        "fit": workspace.params.prepare.fit,
        "part": part,
        "view": view,
        **network_dependencies(network),
        "prediction_version": PREDICTION,
        **plugins_entry(MODELS=(network.architecture,), VIEWS=view.split("+")),
    }
    path = workspace.folder / "features" / digest_of(depends)[:DIGITS] / "manifest.json"
    return FeatureTable(part, view, path, depends)


def feature_views(workspace: Workspace, member: Member) -> list[str]:
    """The views of training rows: those the head is fitted to, that of its score, and those it predicts under."""
    assert member.head is not None
    return list(dict.fromkeys([*member.head.views, "identity", *workspace.params.predict.views]))


def missing_tables(
    workspace: Workspace, network: Member, parts: Sequence[str], views: Sequence[str]
) -> dict[str, list[FeatureTable]]:
    """Part -> its tables that are not complete."""
    tables = {part: [feature_table(workspace, network, part, view) for view in views] for part in parts}
    return {part: absent for part, ts in tables.items() if (absent := [t for t in ts if not t.is_current])}
