"""Load the stored predictions of every member, trained here or external, joined by id: the inputs of a blend."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from competition.artifacts.dependencies import fold_views_path, member_with_tuned_values
from competition.artifacts.manifest import Manifest, digest_of, read_manifest, sha256
from competition.config.errors import UserError
from competition.config.params import Member, Params
from competition.config.params_file import Override
from competition.config.yaml_text import read_yaml
from competition.data.prepared import Prepared
from competition.ensemble.chain import align
from competition.ensemble.external_check import confidence
from competition.ensemble.external_predictions import load_external
from competition.ensemble.predictions import ViewPredictions, concatenate_folds, mean_over_folds

Members = dict[str, ViewPredictions]


@dataclass(frozen=True)
class EnsembleInputs:
    """ids, labels, folds: (N,) of the training rows that every member predicted.  oof, test: by member, aligned.

    labels: (N,) int, (N, C) bool of a multi-label competition, (N,) float64 of a regression.
    """

    ids: np.ndarray
    labels: np.ndarray
    folds: np.ndarray
    oof: Members
    test_ids: np.ndarray
    test: Members
    predicted_folds: tuple[int, ...]
    tuned_folds: tuple[int, ...]  # their held-out rows chose hyperparameters of some fold model or of its teachers
    notes: tuple[str, ...]


def prediction_sources(
    work: Path, params: Params, prepared: Prepared, allow_partial: bool
) -> dict[str, dict[str, Any]]:
    """Member -> digests of its predictions: fold -> files for a member trained here, two files for an external one.

    Each fold also has the folds on whose held-out rows the hyperparameters of its model were chosen.
    Raises UserError for missing folds (unless allow_partial) and for predictions of other data.
    """
    sources: dict[str, dict[str, Any]] = {}
    missing, stale = [], []
    for name in params.members:
        manifests = _views_manifests(work, params, name)
        sources[name] = prediction_digests(manifests)
        missing += [f"{name} fold {fold}" for fold, manifest in manifests.items() if not manifest]
        stale += [f"{name} fold {fold}" for fold, m in manifests.items() if m and not _is_usable(m, prepared)]
    if stale or (missing and not allow_partial):
        folds, problem = (stale, "are of other data, or of an earlier version") if stale else (missing, "are missing")
        raise UserError(f"predictions of {', '.join(folds[:5])} {problem}; `make train predict` makes them")
    for name, external in params.foreign.items():
        files = {"oof": [Path(external.oof)], "test": [Path(file) for file in external.test]}
        for part, file in [(part, path) for part, paths in files.items() for path in paths]:
            if not file.is_file():
                raise UserError(
                    f"members.{name}.predictions.{part}: {file} was not found; expected a CSV or npz of predictions"
                )
        digests = {part: ",".join(map(sha256, files[part])) for part in files}
        sources[name] = digests | {"folds": external.folds}
    return {name: digests for name, digests in sources.items() if digests}


def prediction_digests(manifests: Mapping[int, Manifest | None]) -> dict[str, Any]:
    """Fold -> digests of its files and its tuned folds, from the manifests of one member's views; missing ones left out."""
    return {
        str(fold): {**manifest.files, "tuned_folds": manifest.depends.get("tuned_folds", [])}
        for fold, manifest in manifests.items()
        if manifest
    }


def _views_manifests(work: Path, params: Params, name: str) -> dict[int, Manifest | None]:
    """Fold -> manifest of the predictions of a member's fold model; None = missing."""
    return {fold: read_manifest(fold_views_path(work, name, fold)) for fold in range(params.prepare.folds)}


def _is_usable(manifest: Manifest, prepared: Prepared) -> bool:
    """Return True if predictions are of this data and state the folds that their hyperparameters were chosen on."""
    return manifest.depends["data"] == prepared.digest and "tuned_folds" in manifest.depends


def load_predictions(
    work: Path, params: Params, prepared: Prepared, sources: Mapping[str, Mapping[str, Any]]
) -> EnsembleInputs:
    """Load the predictions listed in `sources` (see prediction_sources) for the folds that every member predicted."""
    trained_here = [name for name in sources if name in params.members]
    folds_by_member = {name: sorted(int(fold) for fold in sources[name]) for name in trained_here}
    shared = sorted(set(range(params.prepare.folds)).intersection(*folds_by_member.values()))
    if len(shared) < 2:
        raise UserError(
            f"an honest score needs two folds that every member predicted, {len(shared)} were found; train more"
        )
    train, test = prepared.part("train"), prepared.part("test")
    train = train[train["fold"].isin(shared)]
    ids, test_ids = train["id"].to_numpy(str), test["id"].to_numpy(str)
    labels, kind = prepared.targets(train["label"].to_numpy()), prepared.competition.targets.kind

    def load(name: str, folds: Iterable[int], part: str) -> list[ViewPredictions]:
        return [
            ViewPredictions.load(fold_views_path(work, name, fold).with_name(f"{part}.npz"), mapped=True)
            for fold in folds
        ]

    # Each member is put in order at once, so that only one member is in memory twice.
    oof_by_member = {name: concatenate_folds(load(name, shared, "oof")).at(ids) for name in trained_here}
    test_by_member = {name: mean_over_folds(load(name, folds_by_member[name], "test")) for name in trained_here}
    notes, confidences = [], []
    if (
        params.foreign and kind == "single"
    ):  # external predictions are compared with the confidence of our own fold models
        confidences = [
            confidence(oof_by_member[name], load(name, folds_by_member[name], "test"), test_by_member[name])
            for name in trained_here
        ]
    for name, external in params.foreign.items():
        loaded = load_external(
            Path(external.oof),
            [Path(file) for file in external.test],
            prepared.competition.classes,
            ids,
            test_ids,
            folds_digest(prepared),
            external.folds,
            labels,
            confidences,
            kind,
        )
        oof_by_member[name], test_by_member[name] = loaded.oof, loaded.test
        notes += [f"{name}: {note}" for note in loaded.notes]
    for name, oof in oof_by_member.items():
        if oof.views != test_by_member[name].views:
            raise UserError(
                f"member {name} has views {list(oof.views)} out of fold and {list(test_by_member[name].views)} on test "
                "rows; expected the same, `make predict FORCE=1` makes them"
            )
    tuned_folds = {
        int(fold) for name in trained_here for model in sources[name].values() for fold in model["tuned_folds"]
    }
    return EnsembleInputs(
        ids,
        labels,
        train["fold"].to_numpy(),
        align(oof_by_member, ids),
        test_ids,
        align(test_by_member, test_ids),
        tuple(shared),
        tuple(sorted(tuned_folds)),
        tuple(notes),
    )


def view_seconds(work: Path, params: Params, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Member -> view -> seconds for 1,000 images by one fold model: the median of the fold models that were timed."""
    medians = {}
    for name in names:
        manifests = _views_manifests(work, params, name).values()
        timings = [m.result["seconds_per_1000"] for m in manifests if m and "seconds_per_1000" in m.result]
        if timings:
            medians[name] = {view: median(t[view] for t in timings if view in t) for view in timings[0]}
    return medians


def model_digests(work: Path, params: Params, sources: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Member -> digest of its fold models, or of its files if external; an equal digest means "not trained again"."""
    digests = {}
    for name, source in sources.items():
        if name in params.members:
            manifests = {fold: read_manifest(fold_views_path(work, name, int(fold))) for fold in source}
            digests[name] = digest_of({fold: m.depends["model"] for fold, m in manifests.items() if m})
        else:
            digests[name] = digest_of(source)
    return digests


def seed_study_path(work: Path, name: str) -> Path:
    """Path of the result of `make noise` for a member."""
    return work / "noise" / f"{name}.json"


def seed_study_digest(prepared: Prepared, params: Params, member: Member) -> str:
    """Digest of what a seed study is valid for: the data, and the member without its seed."""
    return digest_of(
        {
            "data": prepared.digest,
            "fit": params.prepare.fit,
            "member": replace(member, train=replace(member.train, seed=0)),
        }
    )


def seed_spreads(
    work: Path, params: Params, prepared: Prepared, overrides: Sequence[Override]
) -> tuple[dict[str, float], list[str]]:
    """Member -> standard deviation of its score over training seeds, if it has a current seed study; and notes."""
    spreads, notes = {}, []
    for name in params.members:
        path = seed_study_path(work, name)
        if not path.is_file():
            continue
        study = read_yaml(path)
        member, _ = member_with_tuned_values(work, params, name, overrides)
        if study.get("of") == seed_study_digest(prepared, params, member):
            spreads[name] = float(study["spread"])
        else:
            notes.append(
                f"{name}: its seed study is of other parameters or data; `make noise MEMBER={name}` repeats it"
            )
    return spreads, notes


def folds_digest(prepared: Prepared) -> str:
    """Digest of id -> fold. External out-of-fold predictions must be made with the same folds."""
    train = prepared.part("train")
    return digest_of(sorted(zip(train["id"], train["fold"].astype(int).tolist())))
