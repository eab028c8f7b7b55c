"""Paths of the results of each stage under work/<competition>, and the values that each result depends on.

Every stage takes both from here, so that no two stages disagree about what is current.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import Manifest, changed_keys, files_intact, read_manifest, sha256, to_plain
from competition.config.params import ExcludedFolds, Member, Params
from competition.config.params_file import Override
from competition.data.prepared import Prepared, data_digest
from competition.training.tuning import with_values


def tuning_result_path(work: Path, name: str) -> Path:
    """Path of best.json of a member's study, beside manifest.json and study.log."""
    return work / "tune" / name / "best.json"


def fold_model_path(work: Path, name: str, fold: int) -> Path:
    """Path of the manifest of one fold model, beside weights.npz, history.csv and oof.npz (identity view)."""
    return work / "members" / name / f"fold{fold}" / "manifest.json"


def model_path(work: Path, name: str, fold: ExcludedFolds) -> Path:
    """Path of the manifest of a fold model, or of a nested teacher: a model trained without two folds."""
    if isinstance(fold, int):
        return fold_model_path(work, name, fold)
    return work / "members" / name / "without" / f"{fold[0]}-{fold[1]}" / "manifest.json"


def soft_labels_path(work: Path, name: str, fold: ExcludedFolds) -> Path:
    """Path of the manifest of a teacher's predictions for the rows it was trained on, beside soft.npz."""
    return model_path(work, name, fold).parent / "soft" / "manifest.json"


def fold_views_path(work: Path, name: str, fold: int) -> Path:
    """Path of the manifest of one fold model's predictions, beside oof.npz and test.npz."""
    return work / "members" / name / f"fold{fold}" / "views" / "manifest.json"


def export_path(work: Path, name: str) -> Path:
    """Path of the manifest of an export, beside its model, serving.json and README.md.  name: `Selection.name`."""
    return work / "export" / name / "manifest.json"


def member_with_tuned_values(
    work: Path, params: Params, name: str, overrides: Sequence[Override]
) -> tuple[Member, dict[str, str]]:
    """The member as it is trained, and key -> "value (origin)" for every tuned key."""
    member, study = params.members[name], finished_study(work, name)
    if study is None or study_differences(work, params, name):
        return member, {}
    best = json.loads(tuning_result_path(work, name).read_text(encoding="utf-8"))
    tuned_member, origins = with_values(name, member, best["values"], overrides)
    if any("(tuned)" in origin for origin in origins.values()):
        folds = tuple(sorted({*member.tuned_folds, *best["folds"]}))
        tuned_member = replace(tuned_member, tuned_folds=folds)
    return tuned_member, origins


def finished_study(work: Path, name: str) -> Manifest | None:
    """The manifest of a member's finished study; None if it is missing or one of its files is damaged."""
    result = tuning_result_path(work, name)
    path = result.with_name("manifest.json")
    manifest = read_manifest(path)
    return manifest if manifest is not None and files_intact(path, manifest) and result.is_file() else None


def study_differences(work: Path, params: Params, name: str) -> list[str]:
    """Changes of the data and the member since their study was finished; [] = its values are used.

    Ignored are the number of trials, the search space, the study's seed and the member's own value of a searched key.
    """
    study = finished_study(work, name)
    if study is None:
        return []
    searched = json.loads(tuning_result_path(work, name).read_text(encoding="utf-8"))["values"]
    after = to_plain(_study_subject(data_digest(work / "data"), params, name))
    before = {key: study.depends.get(key) for key in after}
    for subject in (before, after):
        member = subject["member"] = dict(subject["member"] or {})
        member.pop("tuned_folds", None)
        member["train"] = {key: value for key, value in member.get("train", {}).items() if key not in searched}
    return changed_keys(before, after)


def training_parts(member: Member) -> tuple[str, ...]:
    """Parts of the index whose images a member is trained on."""
    return ("train", "external") if member.external else ("train",)


def tuning_dependencies(prepared: Prepared, params: Params, name: str) -> dict[str, Any]:
    """What the result of a member's study depends on."""
    tune = params.tune
    return {
        **_study_subject(prepared.digest, params, name),
        "search": tune.search,
        "folds": tune.folds,
        "trained_on": tune.trained_on,
        "seed": tune.seed,
        "trials": tune.trials,
    }


def folds_used_in_tuning(params: Params) -> list[int]:
    """Folds whose labels take part in the choice of hyperparameters, by scoring a trial or by training it."""
    within_folds = params.tune.trained_on == "tune_folds"
    return sorted(set(params.tune.folds)) if within_folds else list(range(params.prepare.folds))


def _study_subject(data: str, params: Params, name: str) -> dict[str, Any]:
    """The data and the member for which tuned values are valid.  data: digest."""
    member = params.members[name]
    return {"data": data, "fit": params.prepare.fit, "member": member, "weights": _weights_file_digest(member)}


def _weights_file_digest(member: Member) -> str:
    """Digest of the file of initial weights; "" if member.weights is not a local file."""
    return sha256(Path(member.weights)) if Path(member.weights).is_file() else ""


def fold_model_dependencies(
    work: Path, prepared: Prepared, params: Params, member: Member, fold: ExcludedFolds
) -> dict[str, Any]:
    """What the weights of a fold model depend on. Not the device: a model counts as the same on any device.

    teachers: the weights of exactly those models whose soft labels this one learns from.
    tuned_folds: the folds on whose held-out rows hyperparameters were chosen, the member's own or its teachers'.
    """
    excluded = teacher_models(member, params.prepare.folds, fold)
    manifests = {
        teacher: {str(model): read_manifest(model_path(work, teacher, model)) for model in excluded}
        for teacher in member.teacher
    }
    teacher_folds = {
        tuned_fold
        for models in manifests.values()
        for manifest in models.values()
        if manifest
        for tuned_fold in manifest.depends.get("tuned_folds", ())
    }
    return {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "fold": fold,
        "member": member,
        "weights": _weights_file_digest(member),
        "teachers": {
            teacher: {
                model: manifest.files.get("weights.npz", "") if manifest else "" for model, manifest in models.items()
            }
            for teacher, models in manifests.items()
        },
        "tuned_folds": sorted({*member.tuned_folds, *teacher_folds}),
    }


def is_nested(member: Member, fold: ExcludedFolds) -> bool:
    """Return True if the teachers of this model are trained without one more fold. Never for a nested teacher itself."""
    return bool(member.teacher) and member.teacher_scheme == "nested" and isinstance(fold, int)


def teacher_models(member: Member, folds: int, fold: ExcludedFolds) -> list[ExcludedFolds]:
    """The excluded folds of each teacher model of a fold model; they always include the student's held-out fold.

    same_fold: one model, trained without the fold that the student excludes.
    nested: for every other fold, a model trained without that fold as well; it gives soft labels to its rows.
    """
    if isinstance(fold, tuple) or not is_nested(member, fold):
        return [fold]
    return [(min(fold, second), max(fold, second)) for second in range(folds) if second != fold]


def views_dependencies(work: Path, prepared: Prepared, params: Params, name: str, fold: int) -> dict[str, Any]:
    """What the predictions of a fold model depend on: its weights by their digest, however they were trained."""
    manifest = read_manifest(fold_model_path(work, name, fold))
    return {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "views": params.predict.views,
        "model": manifest.files["weights.npz"] if manifest else "none",
        "tuned_folds": manifest.depends.get("tuned_folds", []) if manifest else [],
    }


def soft_labels_dependencies(
    work: Path, prepared: Prepared, params: Params, name: str, fold: ExcludedFolds
) -> dict[str, Any]:
    """What the soft labels of one teacher model depend on."""
    manifest = read_manifest(model_path(work, name, fold))
    weights = manifest.files["weights.npz"] if manifest else "none"
    return {"data": prepared.digest, "fit": params.prepare.fit, "model": weights}


def tuning_trials(work: Path) -> int:
    """Number of finished trials in the current studies of all members."""
    studies = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(work.glob("tune/*/best.json"))]
    return sum(int(study.get("trials", 0)) for study in studies)
