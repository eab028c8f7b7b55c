"""Held-out scores of stored fold models under the metric of the parameters, the lines that tell them, and their noise:
the spread of a member's score over training seeds (`make noise`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from competition.config.digests import digest_of
from competition.config.errors import UserError, counted
from competition.config.params import Member
from competition.config.yaml_text import read_yaml
from competition.ensemble.stored_predictions import ViewPredictions
from competition.ensemble.trivial import trivial_score
from competition.files.manifest import Manifest, display_path, read_manifest
from competition.prepare.prepared import Prepared
from competition.training.versions import TRAINING
from competition.workspace.dependencies import fold_manifest_path, fold_names
from competition.workspace.runs import Run, runs_of
from competition.workspace.studies import DIGITS, member_with_tuned_values, study_subject
from competition.workspace.workspace import Workspace


def trivial_score_of_folds(prepared: Prepared, folds: Sequence[int]) -> tuple[str, float]:
    """What the trivial baseline answers, and its score on all rows of these folds together, in the metric's usual sign."""
    train = prepared.part("train")
    labels = prepared.competition.targets.of(train["label"].to_numpy()[train["fold"].isin(folds)])
    return trivial_score(labels, prepared.metric, len(prepared.competition.classes))


def trivial_text(prepared: Prepared, folds: Sequence[int] | None = None, score: float | None = None) -> str:
    """ "the trivial baseline (the most frequent class for every row) scores 0.0182 on 1,347 rows".

    Of all rows together, as beside a blend, so that it is the same score wherever the rows are the same.
    folds: None = all.  score: on the same rows, in the metric's usual sign; the text says where it is not better.
    """
    fold_of_row = prepared.part("train")["fold"]
    folds, sign = sorted(set(fold_of_row)) if folds is None else folds, prepared.metric.sign
    answer, trivial = trivial_score_of_folds(prepared, folds)
    beaten = "" if score is None or sign * score > sign * trivial else ", NOT BEATEN"
    rows = counted(int(fold_of_row.isin(folds).sum()), "row")
    return f"the trivial baseline ({answer}) scores {trivial:.4f} on {rows}{beaten}"


def held_out_score(prepared: Prepared, run: Run, fold: int) -> float:
    """Score of a fold model on its held-out rows, identity view; NaN if it cannot be computed.

    The manifest has the score under the metric of its training; for another metric it is computed from oof.npz.
    """
    path, metric = fold_manifest_path(run, fold), prepared.metric
    manifest = read_manifest(path)
    if manifest is not None and manifest.result.get("metric", metric.name) == metric.name:
        return float(manifest.result["held_out"])
    train = prepared.part("train").set_index("id")["label"]
    with suppress(UserError, KeyError):  # no predictions, or rows that are no longer there
        predictions = ViewPredictions.load(path.with_name("oof.npz"))
        labels = prepared.competition.targets.of(train.loc[predictions.ids].to_numpy())
        return metric.display(metric.evaluate(labels, predictions.view("identity")))
    return float("nan")


def result_line(metric: str, manifest: Manifest) -> str:
    """The result of one fold model for the terminal."""
    result = manifest.result
    line = f"{metric} {result['held_out']:.4f} on its held-out rows, {result['seconds']:.0f} s"
    if "inner" in result:
        line += (
            f"; epoch {result['epoch']} of {result['epochs']} has the best score on its inner validation part "
            f"({result['inner']:.4f}): its weights predict these rows and the test rows"
        )
    return line


def summary_lines(workspace: Workspace, names: Sequence[str]) -> list[str]:
    """Mean and range of the held-out scores of each run of these members, beside the trivial baseline."""
    params, prepared, lines = workspace.params, workspace.prepared, list[str]()
    tuned_folds, tuned_members, sign = set[int](), list[str](), prepared.metric.sign
    for run in [run for name in names for run in runs_of(workspace, name)]:
        folds = [fold for fold in range(params.prepare.folds) if read_manifest(fold_manifest_path(run, fold))]
        scores = np.array([held_out_score(prepared, run, fold) for fold in folds])
        if not folds:
            continue
        tuned = sorted({*run.depends["tuned_folds"]} & set(folds))
        tuned_folds.update(tuned)
        tuned_members += [run.title] if tuned else []
        trivial = np.array([trivial_score_of_folds(prepared, [fold])[1] for fold in folds])
        unbeaten = int((sign * scores <= sign * trivial).sum())
        beside = f"; the trivial baseline's is {trivial.mean():.4f} on the same fold{'s' * (len(folds) > 1)}"
        beside += f", NOT BEATEN in {unbeaten} of {counted(len(folds), 'fold')}" if unbeaten else ""
        # The spread over folds, not a standard error: folds share their training rows.
        facts = [f"from {scores.min():.4f} to {scores.max():.4f}"] if len(folds) > 1 else []
        facts += [f"optimistic in {fold_names(tuned)}"] if tuned else []
        score = f"{'mean ' if len(folds) > 1 else ''}held-out score {scores.mean():.4f}"
        score += f" ({', '.join(facts)})" if facts else ""
        place = f"in {display_path(run.folder)}"
        lines.append(f"train {run.title}: {counted(len(folds), 'fold')}, {score}{beside}; {place}")
    if tuned_folds:
        chose = f"rows of {fold_names(sorted(tuned_folds))} took part in choosing hyperparameters of {', '.join(tuned_members)}"
        honest = "and no rows are left for one"
        if len(tuned_folds) < params.prepare.folds:
            honest = "`make predict` computes the honest score, without those rows"
        lines.append(f"train: {chose}: their means are not honest scores; {honest}")
    return lines


def seed_study_path(workspace: Workspace, name: str, member: Member) -> Path:
    """Path of the result of `make noise` for a member.

    It is valid for the data, the metric, the version of training, and the member without its seed.
    """
    member = replace(member, train=replace(member.train, seed=0))
    subject = study_subject(workspace.prepared, workspace.params, member)
    depends = {**subject, "metric": workspace.prepared.competition.metric, "training_version": TRAINING}
    return workspace.folder / "noise" / name / f"{digest_of(depends)[:DIGITS]}.json"


def seed_spreads(workspace: Workspace) -> tuple[dict[str, float], list[str]]:
    """Member -> standard deviation of its score over training seeds, if it has a current seed study; and notes.

    The spread of a member that is averaged over n seeds is smaller by the square root of n.
    """
    spreads, notes = {}, []
    for name in workspace.params.members:
        if not any((workspace.folder / "noise" / name).glob("*.json")):
            continue
        member, _ = member_with_tuned_values(workspace, name)
        path = seed_study_path(workspace, name, member)
        if path.is_file():
            spreads[name] = float(read_yaml(path)["spread"]) / member.seeds**0.5
        else:
            again = f"`make noise MEMBER={name}` with the PARAMS and SET of this command repeats it"
            notes.append(f"{name}: its seed study is of other parameters or data; {again}")
    return spreads, notes
