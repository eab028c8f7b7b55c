"""Every member's cached predictions, ours and foreign ones, joined by id: what a blend is chosen from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from competition.artifacts.dependencies import fold_views_manifest, member_with_tuned_values
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
    """ids, labels, folds: (N,) of the training rows that every member predicted.  oof, test: by member, aligned."""

    ids: np.ndarray
    labels: np.ndarray
    folds: np.ndarray
    oof: Members
    test_ids: np.ndarray
    test: Members
    predicted_folds: tuple[int, ...]
    tuned_folds: tuple[int, ...]  # whose held-out rows chose hyperparameters of any fold model, or of its teachers
    notes: tuple[str, ...]


def prediction_sources(
    work: Path, params: Params, prepared: Prepared, allow_partial: bool
) -> dict[str, dict[str, Any]]:
    """Member -> what its predictions are, as digests: fold -> files for ours, two files for a foreign one.

    With each fold: on which folds' held-out rows the hyperparameters of the model that predicted were chosen.
    Raises UserError for folds that lack (unless allowed) and for predictions of other data.
    """
    found: dict[str, dict[str, Any]] = {}
    lacking, stale = [], []
    for name in params.members:
        made = {fold: read_manifest(fold_views_manifest(work, name, fold)) for fold in range(params.prepare.folds)}
        found[name] = prediction_digests(made)
        lacking += [f"{name} fold {fold}" for fold, m in made.items() if not m]
        stale += [f"{name} fold {fold}" for fold, m in made.items() if m and not _is_of(m, prepared)]
    if stale or (lacking and not allow_partial):
        which, why = (stale, "are of other data, or of an earlier version") if stale else (lacking, "are missing")
        raise UserError(f"predictions of {', '.join(which[:5])} {why}; `make train predict` makes them")
    for name, foreign in params.foreign.items():
        files = {"oof": [Path(foreign.oof)], "test": [Path(file) for file in foreign.test]}
        missing = [(part, file) for part in files for file in files[part] if not file.is_file()]
        if missing:
            part, file = missing[0]
            raise UserError(
                f"members.{name}.predictions.{part}: {file} was not found; expected a CSV or npz of predictions"
            )
        found[name] = {part: ",".join(map(sha256, files[part])) for part in files} | {"folds": foreign.folds}
    return {name: made for name, made in found.items() if made}


def prediction_digests(made: Mapping[int, Manifest | None]) -> dict[str, Any]:
    """Fold -> what its predictions are, from the manifests of one member's views: what a blend depends on."""
    return {str(k): {**m.files, "tuned_folds": m.depends.get("tuned_folds", [])} for k, m in made.items() if m}


def _is_of(made: Manifest, prepared: Prepared) -> bool:
    """Whether predictions are of this data, and say on which rows their hyperparameters were chosen."""
    return made.depends["data"] == prepared.digest and "tuned_folds" in made.depends


def load_predictions(
    work: Path, params: Params, prepared: Prepared, have: Mapping[str, Mapping[str, Any]]
) -> EnsembleInputs:
    """Read what `sources` found."""
    ours = [name for name in have if name in params.members]
    folds_of = {name: sorted(int(fold) for fold in have[name]) for name in ours}
    shared = sorted(set(range(params.prepare.folds)).intersection(*folds_of.values()))
    if len(shared) < 2:
        raise UserError(
            f"an honest score needs two folds that every member predicted, {len(shared)} were found; train more"
        )
    train, test = prepared.part("train"), prepared.part("test")
    train = train[train["fold"].isin(shared)]
    ids, test_ids = train["id"].to_numpy(str), test["id"].to_numpy(str)

    def load(name: str, folds: Iterable[int], part: str) -> list[ViewPredictions]:
        return [
            ViewPredictions.load(fold_views_manifest(work, name, fold).with_name(f"{part}.npz"), mapped=True)
            for fold in folds
        ]

    # In their order at once, so that two copies are there of one member alone.
    oof = {name: concatenate_folds(load(name, shared, "oof")).at(ids) for name in ours}
    blind = {name: mean_over_folds(load(name, folds_of[name], "test")) for name in ours}
    notes, own = [], []
    if params.foreign:  # how confident our own fold models are is what external predictions are compared with
        own = [confidence(oof[name], load(name, folds_of[name], "test"), blind[name]) for name in ours]
    labels = train["label"].to_numpy()
    for name, foreign in params.foreign.items():
        oof_file, test_files = Path(foreign.oof), [Path(file) for file in foreign.test]
        classes, digests = prepared.competition.classes, (folds_digest(prepared), foreign.folds)
        found = load_external(oof_file, test_files, classes, ids, test_ids, *digests, labels, own)
        oof[name], blind[name] = found.oof, found.test
        notes += [f"{name}: {note}" for note in found.notes]
    for name in oof:
        if oof[name].views != blind[name].views:
            raise UserError(
                f"member {name} has views {list(oof[name].views)} out of fold and {list(blind[name].views)} on test rows; "
                "expected the same, `make predict FORCE=1` makes them"
            )
    used = {int(fold) for name in ours for model in have[name].values() for fold in model["tuned_folds"]}
    folds = train["fold"].to_numpy()
    return EnsembleInputs(
        ids,
        labels,
        folds,
        align(oof, ids),
        test_ids,
        align(blind, test_ids),
        tuple(shared),
        tuple(sorted(used)),
        tuple(notes),
    )


def view_seconds(work: Path, params: Params, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Member -> view -> seconds for 1,000 images by one fold model, the median of its fold models; measured ones alone."""
    found = {}
    for name in names:
        made = [read_manifest(fold_views_manifest(work, name, fold)) for fold in range(params.prepare.folds)]
        told = [m.result["seconds_per_1000"] for m in made if m and "seconds_per_1000" in m.result]
        if told:
            found[name] = {view: median(one[view] for one in told if view in one) for view in told[0]}
    return found


def model_digests(work: Path, params: Params, have: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Member -> digest of its fold models, or of its files where it was made elsewhere: equal means not trained again."""
    found = {}
    for name, made in have.items():
        if name in params.members:
            weights = {fold: read_manifest(fold_views_manifest(work, name, int(fold))) for fold in made}
            found[name] = digest_of({fold: m.depends["model"] for fold, m in weights.items() if m})
        else:
            found[name] = digest_of(made)
    return found


def seed_study_path(work: Path, name: str) -> Path:
    """What `make noise` found of a member."""
    return work / "noise" / f"{name}.json"


def seed_study_digest(prepared: Prepared, params: Params, member: Member) -> str:
    """Digest of what a seed study is about: the member but for its seed, and the data."""
    about = {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "member": replace(member, train=replace(member.train, seed=0)),
    }
    return digest_of(about)


def seed_spreads(
    work: Path, params: Params, prepared: Prepared, overrides: Sequence[Override]
) -> tuple[dict[str, float], list[str]]:
    """Member -> standard deviation of its score over training seeds, where it was studied as it is now; and notes."""
    spreads, notes = {}, []
    for name in params.members:
        if seed_study_path(work, name).is_file():
            told, (member, _) = (
                read_yaml(seed_study_path(work, name)),
                member_with_tuned_values(work, params, name, overrides),
            )
            if told.get("of") == seed_study_digest(prepared, params, member):
                spreads[name] = float(told["spread"])
            else:
                notes.append(
                    f"{name}: its seed study is of other parameters or data; `make noise MEMBER={name}` makes it again"
                )
    return spreads, notes


def folds_digest(prepared: Prepared) -> str:
    """Of id -> fold alone: what a member made elsewhere must share for its out-of-fold rows to be as unseen as ours."""
    train = prepared.part("train")
    return digest_of(sorted(zip(train["id"], train["fold"].astype(int).tolist())))
