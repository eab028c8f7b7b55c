"""Where the results of each stage lie under work/<competition>, and what each is made from: no two stages can disagree."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from competition.data.prepared import Prepared
from competition.manifest import is_current, read_manifest, sha256
from competition.params import Member, Params
from competition.params_file import Override
from competition.training.tuning import with_values


def tuned(work: Path, name: str) -> Path:
    """best.json of a member's study; manifest.json and study.log lie beside it."""
    return work / "tune" / name / "best.json"


def fold_model(work: Path, name: str, fold: int) -> Path:
    """The manifest of one fold model; weights.npz, history.csv and oof.npz (plain view) lie beside it."""
    return work / "members" / name / f"fold{fold}" / "manifest.json"


def fold_views(work: Path, name: str, fold: int) -> Path:
    """The manifest of one fold model's predictions; oof.npz and test.npz lie beside it."""
    return work / "members" / name / f"fold{fold}" / "views" / "manifest.json"


def tuned_member(work: Path, params: Params, name: str, overrides: Sequence[Override]) -> tuple[Member, dict[str, str]]:
    """The member as it is trained, and key -> "value (where from)" for every tuned key."""
    member, best = params.members[name], tuned(work, name)
    made = read_manifest(best.with_name("manifest.json"))
    if made is None or not is_current(best.with_name("manifest.json"), made.depends):
        return member, {}
    return with_values(member, json.loads(best.read_text(encoding="utf-8"))["values"], overrides)


def training_parts(member: Member) -> tuple[str, ...]:
    """Parts of the index whose images a member learns from."""
    return ("train", "external") if member.external else ("train",)


def tune_depends(prepared: Prepared, params: Params, name: str) -> dict[str, Any]:
    space = {
        "search": params.tune.search,
        "folds": params.tune.folds,
        "seed": params.tune.seed,
        "trials": params.tune.trials,
    }
    return {"data": prepared.digest, "fit": params.prepare.fit, "member": params.members[name], **space}


def fold_depends(work: Path, prepared: Prepared, params: Params, member: Member, fold: int) -> dict[str, Any]:
    """The device is not in it: the same member is the same on any."""
    weights = Path(member.weights)
    return {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "fold": fold,
        "member": member,
        "weights": sha256(weights) if weights.is_file() else "",
        "teachers": {name: oof_digests(work, params, name) for name in member.teacher},
    }


def oof_digests(work: Path, params: Params, name: str) -> list[str]:
    """Of the out-of-fold predictions that each fold model of a member left when it was trained; "" where one lacks."""
    made = [read_manifest(fold_model(work, name, fold)) for fold in range(params.prepare.folds)]
    return [manifest.files.get("oof.npz", "") if manifest else "" for manifest in made]


def views_depends(work: Path, prepared: Prepared, params: Params, name: str, fold: int) -> dict[str, Any]:
    """Weights by their digest: predictions are made again when the model is another one, however it came about."""
    made = read_manifest(fold_model(work, name, fold))
    weights = made.files["weights.npz"] if made else "none"
    return {"data": prepared.digest, "fit": params.prepare.fit, "views": params.predict.views, "model": weights}


def tuned_folds(params: Params, names: Sequence[str]) -> tuple[int, ...]:
    """Folds on whose held-out rows the hyperparameters of these members were chosen."""
    return params.tune.folds if names and params.tune.trials else ()


def tuning_trials(work: Path) -> int:
    """Finished trials of all members' studies as they are now."""
    studies = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(work.glob("tune/*/best.json"))]
    return sum(int(study.get("trials", 0)) for study in studies)
