"""Where the results of each stage lie under work/<competition>, and what each is made from: no two stages can disagree."""

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
    """best.json of a member's study; manifest.json and study.log lie beside it."""
    return work / "tune" / name / "best.json"


def fold_model_manifest(work: Path, name: str, fold: int) -> Path:
    """The manifest of one fold model; weights.npz, history.csv and oof.npz (plain view) lie beside it."""
    return work / "members" / name / f"fold{fold}" / "manifest.json"


def model_manifest(work: Path, name: str, fold: ExcludedFolds) -> Path:
    """The manifest of a fold model, or of a nested teacher: a model trained without two folds."""
    if isinstance(fold, int):
        return fold_model_manifest(work, name, fold)
    return work / "members" / name / "without" / f"{fold[0]}-{fold[1]}" / "manifest.json"


def soft_labels_manifest(work: Path, name: str, fold: ExcludedFolds) -> Path:
    """The manifest of what a teacher says of the rows it learned from; soft.npz lies beside it."""
    return model_manifest(work, name, fold).parent / "soft" / "manifest.json"


def fold_views_manifest(work: Path, name: str, fold: int) -> Path:
    """The manifest of one fold model's predictions; oof.npz and test.npz lie beside it."""
    return work / "members" / name / f"fold{fold}" / "views" / "manifest.json"


def member_with_tuned_values(
    work: Path, params: Params, name: str, overrides: Sequence[Override]
) -> tuple[Member, dict[str, str]]:
    """The member as it is trained, and key -> "value (where from)" for every tuned key."""
    member, best, study = params.members[name], tuning_result_path(work, name), whole_study(work, name)
    if study is None or study_differences(work, params, name):
        return member, {}
    values = json.loads(best.read_text(encoding="utf-8"))
    tuned_one, origins = with_values(name, member, values["values"], overrides)
    if any("(tuned)" in origin for origin in origins.values()):
        folds = tuple(sorted({*member.tuned_folds, *values["folds"]}))
        tuned_one = replace(tuned_one, tuned_folds=folds)
    return tuned_one, origins


def whole_study(work: Path, name: str) -> Manifest | None:
    """The manifest of a member's finished study, if its best.json is whole."""
    path = tuning_result_path(work, name).with_name("manifest.json")
    made = read_manifest(path)
    return made if made is not None and files_intact(path, made) and tuning_result_path(work, name).is_file() else None


def study_differences(work: Path, params: Params, name: str) -> list[str]:
    """In what the data and the member differ from those that a finished study was about; [] = its values are used.

    Trials, search space and the study's seed may differ, and what the member's file says for a searched value.
    """
    study = whole_study(work, name)
    if study is None:
        return []
    searched = json.loads(tuning_result_path(work, name).read_text(encoding="utf-8"))["values"]
    now = to_plain(_studied(data_digest(work / "data"), params, name))
    before = {key: study.depends.get(key) for key in now}
    for one in (before, now):
        member = one["member"] = dict(one["member"] or {})
        member.pop("tuned_folds", None)
        member["train"] = {key: value for key, value in member.get("train", {}).items() if key not in searched}
    return changed_keys(before, now)


def training_parts(member: Member) -> tuple[str, ...]:
    """Parts of the index whose images a member learns from."""
    return ("train", "external") if member.external else ("train",)


def tuning_dependencies(prepared: Prepared, params: Params, name: str) -> dict[str, Any]:
    space = {
        "search": params.tune.search,
        "folds": params.tune.folds,
        "trained_on": params.tune.trained_on,
        "seed": params.tune.seed,
        "trials": params.tune.trials,
    }
    return {**_studied(prepared.digest, params, name), **space}


def folds_used_in_tuning(params: Params) -> list[int]:
    """Folds whose labels take any part in the choice of hyperparameters: by scoring a trial or by training it."""
    return (
        sorted(set(params.tune.folds)) if params.tune.trained_on == "tune_folds" else list(range(params.prepare.folds))
    )


def _studied(data: str, params: Params, name: str) -> dict[str, Any]:
    """What tuned values hold for: the data and the member."""
    member = params.members[name]
    return {"data": data, "fit": params.prepare.fit, "member": member, "weights": _start(member)}


def _start(member: Member) -> str:
    """Digest of the file of starting weights, "" where it is no local file."""
    return sha256(Path(member.weights)) if Path(member.weights).is_file() else ""


def fold_model_dependencies(
    work: Path, prepared: Prepared, params: Params, member: Member, fold: ExcludedFolds
) -> dict[str, Any]:
    """The device is not in it: the same member is the same on any.

    teachers: the weights of exactly those models whose soft labels this one learns from.
    tuned_folds: the folds on whose held-out rows hyperparameters were chosen, the member's own or its teachers'.
    """
    models = {name: teacher_models(member, params.prepare.folds, fold) for name in member.teacher}
    made = {name: {each: read_manifest(model_manifest(work, name, each)) for each in models[name]} for name in models}
    taught = [manifest for of_one in made.values() for manifest in of_one.values() if manifest]
    return {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "fold": fold,
        "member": member,
        "weights": _start(member),
        "teachers": {
            name: {
                str(each): manifest.files.get("weights.npz", "") if manifest else "" for each, manifest in one.items()
            }
            for name, one in made.items()
        },
        "tuned_folds": sorted(
            {*member.tuned_folds, *(f for one in taught for f in one.depends.get("tuned_folds", ()))}
        ),
    }


def is_nested(member: Member, fold: ExcludedFolds) -> bool:
    """Whether this fold model's teachers are trained without one fold more. A nested teacher's own teachers never are."""
    return bool(member.teacher) and member.teacher_scheme == "nested" and isinstance(fold, int)


def teacher_models(member: Member, folds: int, fold: ExcludedFolds) -> list[ExcludedFolds]:
    """What each teacher of a fold model left out: no teacher learned from the student's held-out rows.

    same_fold: the very fold the student leaves out.  nested: for every other fold, whose rows it gives soft labels to,
    that fold as well.
    """
    if isinstance(fold, tuple) or not is_nested(member, fold):
        return [fold]
    return [(min(fold, other), max(fold, other)) for other in range(folds) if other != fold]


def views_dependencies(work: Path, prepared: Prepared, params: Params, name: str, fold: int) -> dict[str, Any]:
    """Weights by their digest: predictions are made again when the model is another one, however it came about."""
    made = read_manifest(fold_model_manifest(work, name, fold))
    weights = made.files["weights.npz"] if made else "none"
    chosen_on = made.depends.get("tuned_folds", []) if made else []
    return {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "views": params.predict.views,
        "model": weights,
        "tuned_folds": chosen_on,
    }


def soft_labels_dependencies(
    work: Path, prepared: Prepared, params: Params, name: str, fold: ExcludedFolds
) -> dict[str, Any]:
    """What a teacher's soft labels are made from."""
    made = read_manifest(model_manifest(work, name, fold))
    weights = made.files["weights.npz"] if made else "none"
    return {"data": prepared.digest, "fit": params.prepare.fit, "model": weights}


def tuning_trials(work: Path) -> int:
    """Finished trials of all members' studies as they are now."""
    studies = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(work.glob("tune/*/best.json"))]
    return sum(int(study.get("trials", 0)) for study in studies)
