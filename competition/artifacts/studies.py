"""Studies of hyperparameters: where each is stored, what it depends on, and the tuned values that a member is trained with.

A study is stored under the digest of what it depends on, so that other data, members or settings never replace it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.artifacts.code_digest import code_digest
from competition.artifacts.manifest import Manifest, changed_keys, digest_of, files_intact, path_digest, read_manifest
from competition.config.params import Member, Params, stated_keys
from competition.config.params_file import Override
from competition.config.plugins import plugin_digest
from competition.data.prepared import Prepared
from competition.training.tuning import with_values

DIGITS = 12  # hexadecimal digits of a digest in the name of a folder


def study_subject(data: str, params: Params, member: Member) -> dict[str, Any]:
    """The data and the member of a fold model or of a study.  data: digest."""
    return {
        "data": data,
        "fit": params.prepare.fit,
        "member": stated_keys(replace(member, seeds=1)),
        "weights": weights_file_digest(member),
        **plugins_entry(MODELS=(member.architecture,), AUGMENTATIONS=member.train.augment),
    }


def weights_file_digest(member: Member) -> str:
    """Digest of the file or folder of initial weights; "" if member.weights is neither on this machine."""
    return path_digest(Path(member.weights))


def plugins_entry(**names: Iterable[str]) -> dict[str, dict[str, str]]:
    """{"plugins": name -> digest} of the user's code that a result depends on; {} if it depends on none.

    names: kind (MODELS, VIEWS, ...) -> names that the result uses, the project's own among them.
    """
    digests = {f"{kind}.{name}": code for kind in names for name, code in plugin_digest(kind, names[kind]).items()}
    return {"plugins": digests} if digests else {}


def tuning_dependencies(prepared: Prepared, params: Params, name: str) -> dict[str, Any]:
    """What the result of a member's study depends on."""
    tune = params.tune
    return {
        **study_subject(prepared.digest, params, params.members[name]),
        "search": tune.search,
        "folds": tune.folds,
        "trained_on": tune.trained_on,
        "seed": tune.seed,
        "trials": tune.trials,
        "metric": prepared.competition.metric,
        "metric_code": plugin_digest("METRICS", [prepared.competition.metric]),
        "code": code_digest(),
    }


def tuning_result_path(work: Path, name: str, depends: dict[str, Any]) -> Path:
    """Path of best.json of a member's study, beside manifest.json and study.log.  depends: of tuning_dependencies."""
    return work / "tune" / name / digest_of(depends)[:DIGITS] / "best.json"


def smaller_study(result: Path, depends: dict[str, Any]) -> Path | None:
    """The journal of the largest study that asked for fewer trials and differs in nothing else; None if there is none.

    result: path of best.json of the larger study.
    """
    journals: dict[int, Path] = {}
    for manifest_path in sorted(result.parent.parent.glob("*/manifest.json")):
        manifest = read_manifest(manifest_path)
        if manifest is None or not manifest_path.with_name("study.log").is_file():
            continue
        trials = int(manifest.depends.get("trials", 0))
        if trials < depends["trials"] and manifest.digest == digest_of({**depends, "trials": trials}):
            journals[trials] = manifest_path.with_name("study.log")
    return journals[max(journals)] if journals else None


def finished_studies(work: Path, name: str) -> list[Path]:
    """Paths of best.json of a member's complete and intact studies, the newest last."""
    studies = []
    for path in (work / "tune" / name).glob("*/manifest.json"):
        manifest = read_manifest(path)
        if manifest is not None and files_intact(path, manifest) and path.with_name("best.json").is_file():
            studies.append((str(manifest.result.get("finished", "")), path.parent.name, path.with_name("best.json")))
    return [result for _, _, result in sorted(studies)]


def used_study(work: Path, prepared: Prepared, params: Params, name: str) -> Path | None:
    """Path of best.json of the study whose values are used: that of the block `tune`, else the newest of this data and member."""
    asked = tuning_result_path(work, name, tuning_dependencies(prepared, params, name))
    studies = [s for s in finished_studies(work, name) if not _differences(s, prepared, params, name)]
    return asked if asked in studies else studies[-1] if studies else None


def study_differences(work: Path, prepared: Prepared, params: Params, name: str) -> list[str]:
    """Changes of the data and the member since the newest study, if no study is used; [] = one is used, or there is none."""
    studies = finished_studies(work, name)
    if not studies or used_study(work, prepared, params, name) is not None:
        return []
    return _differences(studies[-1], prepared, params, name)


def member_with_tuned_values(
    work: Path, prepared: Prepared, params: Params, name: str, overrides: Sequence[Override]
) -> tuple[Member, dict[str, str]]:
    """The member as it is trained, and key -> "value (origin)" for every tuned key."""
    member, study = params.members[name], used_study(work, prepared, params, name)
    if study is None:
        return member, {}
    best = json.loads(study.read_text(encoding="utf-8"))
    tuned_member, origins = with_values(name, member, best["values"], overrides)
    if any("(tuned)" in origin for origin in origins.values()):
        folds = tuple(sorted({*member.tuned_folds, *best["folds"]}))
        tuned_member = replace(tuned_member, tuned_folds=folds)
    return tuned_member, origins


def folds_used_in_tuning(params: Params) -> list[int]:
    """Folds whose labels take part in the choice of hyperparameters, by scoring a trial or by training it."""
    within_folds = params.tune.trained_on == "tune_folds"
    return sorted(set(params.tune.folds)) if within_folds else list(range(params.prepare.folds))


def tuning_trials(work: Path) -> int:
    """Number of finished trials in all studies. Trials of a continued study count once."""
    largest: dict[str, int] = {}
    for path in work.glob("tune/*/*/manifest.json"):
        if manifest := read_manifest(path):
            study = digest_of({"member": path.parts[-3], **manifest.depends, "trials": 0})
            largest[study] = max(largest.get(study, 0), int(manifest.result.get("trials", 0)))
    return sum(largest.values())


def _differences(result: Path, prepared: Prepared, params: Params, name: str) -> list[str]:
    """Changes of the data and the member since a study was finished; [] = its values can be used.

    Ignored are the code, the metric, the settings of the study, and the member's own value of a searched key.
    """
    manifest: Manifest | None = read_manifest(result.with_name("manifest.json"))
    if manifest is None:
        return [f"{result}: missing"]
    searched = json.loads(result.read_text(encoding="utf-8"))["values"]
    after = study_subject(prepared.digest, params, params.members[name])
    before = {key: manifest.depends.get(key) for key in after}
    return changed_keys(_without(before, searched), _without(after, searched))


def _without(subject: dict[str, Any], searched: dict[str, Any]) -> dict[str, Any]:
    """The subject without the member's tuned folds and its values of the searched keys."""
    member = {key: value for key, value in (subject["member"] or {}).items() if key != "tuned_folds"}
    member["train"] = {key: value for key, value in member.get("train", {}).items() if key not in searched}
    return {**subject, "member": member}
