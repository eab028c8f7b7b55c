"""Load the stored predictions of every member, trained here or external, joined by id: the inputs of a blend."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.digests import digest_of
from competition.config.errors import UserError, counted
from competition.config.params import Params
from competition.ensemble.chain import BLEND
from competition.ensemble.external_check import Confidence, agreement_notes, confidence, guessing_notes, order_notes
from competition.ensemble.external_predictions import OurRows, load_external
from competition.ensemble.mixing import mean_over_folds
from competition.ensemble.stored_predictions import ViewPredictions, in_order_of
from competition.workspace.dependencies import (
    blend_blocks,
    external_digests,
    fold_views,
    views_manifest,
    weights_digest,
)
from competition.workspace.runs import Run, blended_external, blended_runs
from competition.workspace.workspace import Workspace

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
    predicted_folds: tuple[int, ...]  # that every run predicted
    tuned_folds: tuple[int, ...]  # their held-out rows chose hyperparameters of some fold model or of its teachers
    notes: tuple[str, ...]


def blend_dependencies(
    workspace: Workspace, sources: Mapping[str, Any], spreads: Mapping[str, float]
) -> dict[str, Any]:
    """What every blend of these predictions depends on.  sources: of prediction_sources.  spreads: of seed_spreads."""
    competition = workspace.prepared.competition  # the metric and the form of the submission
    return {
        "predictions": sources,
        "data": workspace.prepared.digest,
        "competition": competition,
        "seeds": spreads,
        "blend_version": BLEND,
        **blend_blocks(workspace.params),
        **workspace.params.plugins.dependencies(METRICS=(competition.metric,)),
    }


def prediction_sources(workspace: Workspace, allow_partial: bool) -> dict[str, dict[str, Any]]:
    """Member of the blend -> digests of its predictions: run -> fold -> files, or `external_digests` of an external member.

    Each fold also has the folds on whose held-out rows the hyperparameters of its model were chosen. Members without
    predictions are left out.
    Raises UserError for missing folds (unless allow_partial) and for predictions of other data.
    """
    params, prepared = workspace.params, workspace.prepared
    sources: dict[str, dict[str, Any]] = {}
    missing = []
    for name, runs in blended_runs(workspace).items():
        for run in runs:
            if run.depends["data"] != prepared.digest:
                raise UserError(f"{name}: its run {run.label} is of other data; `make train predict` makes another")
            absent = [fold for fold in range(params.prepare.folds) if views_manifest(run, params, fold) is None]
            missing += [f"{run.title} fold {fold}" for fold in absent]
        sources[name] = prediction_digests(runs, params)
    for name in blended_external(params):
        external = params.external[name]
        if not external.test and (count := len(prepared.part("test"))):
            expected = f"a CSV or npz of the {counted(count, 'test image')}, or one per fold model"
            raise UserError(f"members.{name}.predictions.test: missing; expected {expected}")
        for part, file in [("oof", external.oof), *(("test", file) for file in external.test)]:
            if not Path(file).is_file():
                expected = "expected a CSV or npz of predictions, with its path from the folder of the project, without * and ~"
                raise UserError(f"members.{name}.predictions.{part}: {Path(file).absolute()} is no file; {expected}")
        sources[name] = external_digests(external)
    if missing and not allow_partial:
        raise UserError(f"predictions of {', '.join(missing[:5])} are missing; `make train predict` makes them")
    return {name: digests for name, digests in sources.items() if digests}


def left_out_notes(workspace: Workspace, sources: Collection[str]) -> list[str]:
    """A note on each member that takes no part: it has no predictions, or blend.members does not name it. No result depends on them.

    sources: see prediction_sources.
    """
    params, blended = workspace.params, blended_runs(workspace)
    names = [name for name in blended if name not in sources]
    unnamed = [
        name
        for name in (*params.members, *params.external)
        if params.blend.members and name not in params.blend.members
    ]
    return [
        *(f"{name}: no fold model has predicted, so it takes no part" for name in names),
        *(f"{name}: not among blend.members, so it takes no part" for name in unnamed),
    ]


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


def load_predictions(workspace: Workspace, sources: Mapping[str, Mapping[str, Any]]) -> EnsembleInputs:
    """Load the predictions listed in `sources` (see prediction_sources): out of fold for the folds that every run predicted.

    Test predictions are the mean over all fold models of a run, then over the seeds. Raises UserError if fewer than two folds
    are shared.
    """
    params, prepared = workspace.params, workspace.prepared
    blended = {name: runs for name, runs in blended_runs(workspace).items() if name in sources}
    runs_by_member = {name: [run for run in runs if run.digest in sources[name]] for name, runs in blended.items()}
    # Models of one run -> the folds on whose held-out rows their hyperparameters were chosen, and their files.
    models = [by_fold for name in runs_by_member for by_fold in sources[name].values()]
    shared_folds = sorted(set(range(params.prepare.folds)).intersection(*(map(int, by_fold) for by_fold in models)))
    if len(shared_folds) < 2:
        lacking = [
            name
            for name, runs in runs_by_member.items()
            for run in runs
            if len(sources[name][run.digest]) < params.prepare.folds
        ]
        more = f": `make train MEMBER={lacking[0]}` trains the other folds of {lacking[0]}" if lacking else ""
        raise UserError(
            f"an honest score needs two folds that every member predicted; {len(shared_folds) or 'none'} was found{more}"
        )
    train, test_ids = prepared.part("train"), prepared.part("test")["id"].to_numpy(str)
    train = train[train["fold"].isin(shared_folds)]
    ids, folds = train["id"].to_numpy(str), train["fold"].to_numpy()
    competition = prepared.competition
    labels = competition.targets.of(train["label"].to_numpy())
    external_names = [name for name in blended_external(params) if name in sources]
    is_single = competition.targets.kind == "single"
    oof, test, own_confidences, notes = Members(), Members(), list[Confidence](), list[str]()
    for name, runs in runs_by_member.items():
        of_runs, tests = list[ViewPredictions](), list[ViewPredictions]()
        for run in runs:  # each run is put in order at once, so that only one is in memory twice
            folders = {
                int(fold): fold_views(run, params, int(fold)).manifest.parent for fold in sources[name][run.digest]
            }
            held_out = [ViewPredictions.load(folders[fold] / "oof.npz", mapped=True) for fold in shared_folds]
            fold_tests = [ViewPredictions.load(folders[fold] / "test.npz", mapped=True) for fold in sorted(folders)]
            of_runs.append(in_order_of(ids, held_out, workspace.folder))
            tests.append(in_order_of(test_ids, [mean_over_folds(fold_tests)], workspace.folder))
            if external_names and len(test_ids) and is_single and run is runs[0]:
                own_confidences.append(confidence(of_runs[0], fold_tests, tests[0]))
        # The predictions of a single run are used as they are.
        oof[name], test[name] = (
            in_order_of(each[0].ids, [mean_over_folds(each)], workspace.folder) if len(runs) > 1 else each[0]
            for each in (of_runs, tests)
        )
    for name in external_names:
        files, target = params.external[name], competition.targets.kind
        rows = OurRows(competition.classes, ids, test_ids, labels, prepared.folds_digest, target)
        external = load_external(
            Path(files.oof), [Path(file) for file in files.test], rows, files.folds, own_confidences
        )
        oof[name], test[name] = external.oof, external.test
        notes += [f"{name}: {note}" for note in external.notes]
    for name in external_names if is_single else ():
        order = order_notes(oof[name], labels, folds, competition.classes)
        disorder = (order or guessing_notes(oof[name], labels)) + agreement_notes(name, oof, test)
        notes += [f"{name}: {note}" for note in disorder]
    tuned_folds = {int(fold) for by_fold in models for model in by_fold.values() for fold in model["tuned_folds"]}
    tuned = tuple(sorted(tuned_folds))
    return EnsembleInputs(ids, labels, folds, oof, test_ids, test, tuple(shared_folds), tuned, tuple(notes))


def model_digests(workspace: Workspace, sources: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Member -> digest of its fold models, or of its predictions if external; an equal digest means "not trained again"."""
    runs_by_member, digests = blended_runs(workspace), {}
    for name, source in sources.items():
        runs = [run for run in runs_by_member.get(name, ()) if run.digest in source]
        weights = [
            digest_of({str(fold): weights_digest(run, int(fold)) for fold in source[run.digest]}) for run in runs
        ]
        digests[name] = weights[0] if len(weights) == 1 else digest_of(weights or [source["oof"], source["test"]])
    return digests
