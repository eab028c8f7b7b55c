"""Load the stored predictions of every member, trained here or external, joined by id: the inputs of a blend."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from competition.artifacts.code_digest import code_digest
from competition.artifacts.dependencies import fold_views_path, views_manifest, weights_digest
from competition.artifacts.manifest import digest_of, sha256
from competition.artifacts.runs import Run, blended_external, blended_runs
from competition.artifacts.studies import DIGITS, member_with_tuned_values, study_subject
from competition.config.errors import UserError
from competition.config.params import Member, Params
from competition.config.params_file import Override
from competition.config.yaml_text import read_yaml
from competition.data.prepared import Prepared
from competition.ensemble.chain import align
from competition.ensemble.external_check import confidence
from competition.ensemble.external_predictions import load_external
from competition.ensemble.join_check import agreement_notes, guessing_notes
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
    work: Path, params: Params, prepared: Prepared, allow_partial: bool, overrides: Sequence[Override] = ()
) -> dict[str, dict[str, Any]]:
    """Member of the blend -> digests of its predictions: run -> fold -> files, or two files for an external member.

    Each fold also has the folds on whose held-out rows the hyperparameters of its model were chosen.
    Raises UserError for missing folds (unless allow_partial) and for predictions of other data.
    """
    sources: dict[str, dict[str, Any]] = {}
    missing = []
    for name, runs in blended_runs(work, prepared, params, overrides).items():
        for run in runs:
            if run.depends["data"] != prepared.digest:
                raise UserError(f"{name}: its run {run.label} is of other data; `make train predict` makes another")
            absent = [fold for fold in range(params.prepare.folds) if views_manifest(run, params, fold) is None]
            missing += [f"{run.title} fold {fold}" for fold in absent]
        sources[name] = prediction_digests(runs, params)
    if missing and not allow_partial:
        external_names = blended_external(params)
        without = f', or blend without them: SET="blend.members=[{",".join(external_names)}]"' if external_names else ""
        raise UserError(
            f"predictions of {', '.join(missing[:5])} are missing; `make train predict` makes them{without}"
        )
    for name in blended_external(params):
        external = params.foreign[name]
        if not external.test and len(prepared.part("test")):
            raise UserError(
                f"members.{name}.predictions.test: missing; expected a CSV or npz of predictions of the "
                f"{len(prepared.part('test')):,} test images, or one per fold model"
            )
        files = {"oof": [Path(external.oof)], "test": [Path(file) for file in external.test]}
        for part, file in [(part, path) for part, paths in files.items() for path in paths]:
            if not file.is_file():
                raise UserError(
                    f"members.{name}.predictions.{part}: {file} was not found; expected a CSV or npz of predictions"
                )
        digests = {part: ",".join(map(sha256, files[part])) for part in files}
        sources[name] = digests | {"folds": external.folds}
    return {name: digests for name, digests in sources.items() if digests}


def prediction_digests(runs: Sequence[Run], params: Params) -> dict[str, Any]:
    """Run -> fold -> digests of its files and its tuned folds; runs and folds without predictions are left out."""
    digests: dict[str, Any] = {}
    for run in runs:
        manifests = {fold: views_manifest(run, params, fold) for fold in range(params.prepare.folds)}
        folds = {
            str(fold): {**manifest.files, "tuned_folds": manifest.depends["tuned_folds"]}
            for fold, manifest in manifests.items()
            if manifest
        }
        if folds:
            digests[run.digest] = folds
    return digests


def load_predictions(
    work: Path,
    params: Params,
    prepared: Prepared,
    sources: Mapping[str, Mapping[str, Any]],
    overrides: Sequence[Override] = (),
) -> EnsembleInputs:
    """Load the predictions listed in `sources` (see prediction_sources) for the folds that every run predicted."""
    runs_by_member = {
        name: [run for run in runs if run.digest in sources.get(name, {})]
        for name, runs in blended_runs(work, prepared, params, overrides).items()
        if name in sources
    }
    folds_by_run = {
        run.digest: sorted(int(fold) for fold in sources[name][run.digest])
        for name, runs in runs_by_member.items()
        for run in runs
    }
    shared = sorted(set(range(params.prepare.folds)).intersection(*folds_by_run.values()))
    if len(shared) < 2:
        raise UserError(
            f"an honest score needs two folds that every member predicted, {len(shared)} were found; train more"
        )
    train, test = prepared.part("train"), prepared.part("test")
    train = train[train["fold"].isin(shared)]
    ids, test_ids = train["id"].to_numpy(str), test["id"].to_numpy(str)
    labels, kind = prepared.targets(train["label"].to_numpy()), prepared.competition.targets.kind

    def load(run: Run, folds: Iterable[int], part: str) -> list[ViewPredictions]:
        paths = [fold_views_path(run, params, fold).with_name(f"{part}.npz") for fold in folds]
        return [ViewPredictions.load(path, mapped=True) for path in paths]

    def load_oof(run: Run) -> ViewPredictions:
        return concatenate_folds(load(run, shared, "oof")).at(ids)

    def load_test(run: Run) -> list[ViewPredictions]:
        return load(run, folds_by_run[run.digest], "test")

    # Each member is put in order at once, so that only one member is in memory twice.
    oof_by_member = {name: mean_over_runs([load_oof(run) for run in runs]) for name, runs in runs_by_member.items()}
    test_by_member = {
        name: mean_over_runs([mean_over_folds(load_test(run)) for run in runs]) for name, runs in runs_by_member.items()
    }
    notes: list[str] = []
    confidences = []
    external_names = [name for name in blended_external(params) if name in sources]
    # External predictions are compared with the confidence of our own fold models.
    if external_names and len(test_ids) and kind == "single":
        for runs in runs_by_member.values():
            tests = load_test(runs[0])
            confidences.append(confidence(load_oof(runs[0]), tests, mean_over_folds(tests)))
    for name in external_names:
        external = params.foreign[name]
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
    if kind == "single":
        for name in external_names:
            both = [*guessing_notes(oof_by_member[name], labels), *agreement_notes(name, oof_by_member, test_by_member)]
            notes += [f"{name}: {note}" for note in both]
    tuned_folds = {
        int(fold)
        for name in runs_by_member
        for models in sources[name].values()
        for model in models.values()
        for fold in model["tuned_folds"]
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


def mean_over_runs(runs: Sequence[ViewPredictions]) -> ViewPredictions:
    """Average the predictions of a member's runs, joined by id; those of a single run are returned as they are."""
    return mean_over_folds(runs) if len(runs) > 1 else runs[0]


def view_seconds(
    work: Path, params: Params, prepared: Prepared, overrides: Sequence[Override] = ()
) -> dict[str, dict[str, float]]:
    """Member -> view -> seconds for 1,000 images by one fold model: the median of the timed fold models, for all seeds."""
    medians = {}
    for name, runs in blended_runs(work, prepared, params, overrides).items():
        manifests = [views_manifest(run, params, fold) for run in runs for fold in range(params.prepare.folds)]
        timings = [m.result["seconds_per_1000"] for m in manifests if m and "seconds_per_1000" in m.result]
        if timings:
            medians[name] = {view: len(runs) * median(t[view] for t in timings if view in t) for view in timings[0]}
    return medians


def model_digests(
    work: Path,
    params: Params,
    prepared: Prepared,
    sources: Mapping[str, Mapping[str, Any]],
    overrides: Sequence[Override] = (),
) -> dict[str, str]:
    """Member -> digest of its fold models, or of its files if external; an equal digest means "not trained again"."""
    runs_by_member = blended_runs(work, prepared, params, overrides)
    digests = {}
    for name, source in sources.items():
        if name in runs_by_member:
            weights = [models_digest(run, source[run.digest]) for run in runs_by_member[name] if run.digest in source]
            digests[name] = weights[0] if len(weights) == 1 else digest_of(weights)
        else:
            digests[name] = digest_of(source)
    return digests


def models_digest(run: Run, folds: Iterable[Any]) -> str:
    """Digest of the weights of a run's fold models."""
    return digest_of({str(fold): weights_digest(run, int(fold)) for fold in folds})


def run_labels(sources: Mapping[str, Mapping[str, Any]], params: Params) -> tuple[str, ...]:
    """Names (member@digits) of the runs whose predictions are listed in `sources`."""
    trained_here = [name for name in sources if name not in params.foreign]
    return tuple(f"{name.partition('@')[0]}@{digest[:8]}" for name in trained_here for digest in sources[name])


def seed_study_path(work: Path, name: str, digest: str) -> Path:
    """Path of the result of `make noise` for a member.  digest: of seed_study_digest."""
    return work / "noise" / name / f"{digest[:DIGITS]}.json"


def seed_study_digest(prepared: Prepared, params: Params, member: Member) -> str:
    """Digest of what a seed study is valid for: the data, the metric, the code, and the member without its seed."""
    member = replace(member, train=replace(member.train, seed=0))
    subject = study_subject(prepared.digest, params, member)
    return digest_of({**subject, "metric": prepared.competition.metric, "code": code_digest()})


def seed_spreads(
    work: Path, params: Params, prepared: Prepared, overrides: Sequence[Override]
) -> tuple[dict[str, float], list[str]]:
    """Member -> standard deviation of its score over training seeds, if it has a current seed study; and notes.

    The spread of a member that is averaged over n seeds is smaller by the square root of n.
    """
    spreads, notes = {}, []
    for name in params.members:
        if not any((work / "noise" / name).glob("*.json")):
            continue
        member, _ = member_with_tuned_values(work, prepared, params, name, overrides)
        path = seed_study_path(work, name, seed_study_digest(prepared, params, member))
        if path.is_file():
            spreads[name] = float(read_yaml(path)["spread"]) / member.seeds**0.5
        else:
            notes.append(
                f"{name}: its seed study is of other parameters or data; `make noise MEMBER={name}` repeats it"
            )
    return spreads, notes


def folds_digest(prepared: Prepared) -> str:
    """Digest of id -> fold. External out-of-fold predictions must be made with the same folds."""
    train = prepared.part("train")
    return digest_of(sorted(zip(train["id"], train["fold"].astype(int).tolist())))
