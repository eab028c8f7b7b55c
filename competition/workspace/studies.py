"""Studies of hyperparameters: where each is stored, what it depends on, and the tuned values that a member is trained with.

The result of a study is stored under the digest of what it depends on, so that other data, members or settings never
replace it. Its values are used as long as the data, the member and the member's own values are those it was made for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from competition.config.digests import digest_of
from competition.config.params import REMOVED, Member, Params
from competition.config.params_file import recorded_keys
from competition.config.search_space import CHOSEN_IN_EACH_FOLD, own_values, with_values
from competition.files.manifest import changed_keys, intact_manifest, path_digest
from competition.training.versions import FEATURES, HEADS, PROBE, TRAINING
from competition.tuning.choice import format_value
from competition.tuning.settings import overridden_keys
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from competition.prepare.prepared import Prepared

WITHOUT_INFLUENCE = ("members", "storage", "heartbeat", "retries")  # keys of tune that change no result of a study
DIGITS = 12  # hexadecimal digits of a digest in the name of a folder


def study_subject(prepared: "Prepared", params: Params, member: Member) -> dict[str, Any]:
    """The data and the member of a fold model or of a study."""
    return {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "member": recorded_keys(replace(member, seeds=1, views=())),
        "weights": path_digest(Path(member.weights)),  # "" if it is no file or folder on this machine
        **params.plugins.dependencies(MODELS=(member.architecture,), AUGMENTATIONS=member.train.augment),
        **head_entry(params, member),
        **({"columns": path_digest(prepared.folder / "columns.csv")} if member.head and member.head.columns else {}),
        **({"albumentations": path_digest(Path(pipeline))} if (pipeline := member.train.albumentations) else {}),
        **({"probe_version": PROBE} if member.train.probe else {}),
    }


def head_entry(params: Params, member: Member) -> dict[str, Any]:
    """What a head depends on besides its member: the views of the plugins, and the other networks; {} without a head."""
    if member.head is None:
        return {}
    parts = [part for view in member.head.views for part in view.split("+")]
    others = [params.members.get(name) for name in member.head.also]  # None: a stored run names a member that is gone
    return {
        "head_version": HEADS,
        "feature_version": FEATURES,
        "also": [other and network_dependencies(other) for other in others],
        "head_views": params.plugins.dependencies(VIEWS=parts),
    }


def network_dependencies(network: Member) -> dict[str, Any]:
    """What the features of a network depend on besides the image."""
    stated = ("architecture", "image_size", "alpha", "weights", "normalise")
    return {
        **{key: getattr(network, key) for key in stated},
        "precision": network.train.precision,
        "weights_digest": path_digest(Path(network.weights)),  # "" if it is no file or folder on this machine
        **({"seed": network.train.seed} if network.weights == "none" else {}),  # of its random weights
    }


def tuning_dependencies(workspace: Workspace, name: str) -> dict[str, Any]:
    """What the result of a member's study depends on."""
    params, prepared, tune = workspace.params, workspace.prepared, workspace.params.tune
    return {
        **study_subject(prepared, params, params.members[name]),
        **{key: value for key, value in vars(tune).items() if key not in WITHOUT_INFLUENCE},
        **REMOVED["tune"],
        "warm_start": dict.fromkeys(tune.warm_start, ""),
        "metric": prepared.competition.metric,
        "metric_code": params.plugins.digests("METRICS", [prepared.competition.metric]),
        "training_version": TRAINING,
    }


def tuning_result_path(work: Path, name: str, depends: dict[str, Any]) -> Path:
    """Path of best.json of a member's study, beside its manifest.  depends: of tuning_dependencies."""
    return work / "tune" / name / digest_of(depends)[:DIGITS] / "best.json"


@dataclass(frozen=True)
class FinishedStudy:
    """The result of a member's study."""

    folder: Path  # of best.json
    depends: Mapping[str, Any]  # as tuning_dependencies were then
    result: Mapping[str, Any]  # content of best.json


def finished_studies(work: Path, name: str) -> list[FinishedStudy]:
    """The complete and intact studies of a member, the newest last."""
    manifests = {path.parent: intact_manifest(path) for path in (work / "tune" / name).glob("*/manifest.json")}
    studies = [FinishedStudy(folder, one.depends, one.result) for folder, one in manifests.items() if one]
    return sorted(studies, key=lambda study: (study.result["finished"], study.folder.name))


def used_study(workspace: Workspace, name: str) -> FinishedStudy | None:
    """The study whose values are used: that of the block `tune`, else the newest of this data and member."""
    studies = [one for one in finished_studies(workspace.folder, name) if not _differences(workspace, one, name)]
    if not studies:
        return None
    current = tuning_result_path(workspace.folder, name, tuning_dependencies(workspace, name)).parent
    return next((one for one in studies if one.folder == current), studies[-1])


def study_differences(workspace: Workspace, name: str) -> list[str]:
    """Changes of the data and the member since the newest study, if no study is used; [] = one is used, or there is none."""
    studies = finished_studies(workspace.folder, name)
    if not studies or used_study(workspace, name) is not None:
        return []
    return _differences(workspace, studies[-1], name)


def member_with_tuned_values(workspace: Workspace, name: str) -> tuple[Member, dict[str, str]]:
    """The member as it is trained, and key -> "value (origin)" for every tuned key.

    A member that states its tuned folds, as `make adopt` writes them, is trained with the values that it states. Those of a trial may
    also have been copied into the parameter file: the folds of every study that tried them count as tuned, whichever study is used.
    """
    member, study = workspace.params.members[name], used_study(workspace, name)
    folds = {*member.tuned_folds}
    for one in finished_studies(workspace.folder, name):
        if not _differences(workspace, one, name) and _states_a_trial(workspace, one, name):
            folds.update(one.result["folds"])
    if study is None or member.tuned_folds:
        is_complete = folds == {*member.tuned_folds}
        return member if is_complete else replace(member, tuned_folds=tuple(sorted(folds))), {}
    own, stated = study.result["own_values"], own_values(member, study.result["own_values"])
    overridden, is_copied = overridden_keys(name, own, workspace.overrides), _states_a_trial(workspace, study, name)
    values = {key: stated[key] if is_copied else value for key, value in study.result["values"].items()}
    used = {key: value for key, value in values.items() if key not in overridden}
    origins = {}
    for key in stated:
        if key in overridden:
            origins[key] = f"{format_value(stated[key])} (SET)"
        elif key in used:
            source = "tuned, the member's own value" if used[key] == own[key] else "tuned"
            origins[key] = f"{format_value(used[key])} ({source})"
    if not used:
        return member, origins
    return replace(with_values(member, used), tuned_folds=tuple(sorted(folds.union(study.result["folds"])))), origins


def tuned_member(workspace: Workspace, name: str) -> Member:
    """The member with its tuned values, if the data are prepared and a study of them is finished."""
    if workspace.loaded is None and not (workspace.folder / "data" / "manifest.json").is_file():
        return workspace.params.members[name]
    return member_with_tuned_values(workspace, name)[0]


def _states_a_trial(workspace: Workspace, study: FinishedStudy, name: str) -> bool:
    """Whether the parameter file states other values than the member's own ones at a study, for one whose values can be used."""
    own = study.result["own_values"]
    overridden = overridden_keys(name, own, workspace.overrides)
    stated = own_values(workspace.params.members[name], own)
    return any(value != own[key] for key, value in stated.items() if key not in overridden)


def _differences(workspace: Workspace, study: FinishedStudy, name: str) -> list[str]:
    """Changes of the data and the member since a study was finished; [] = its values can be used.

    Ignored are the code, the metric and the settings of the study. The member's own values of the searched keys must be
    those of one of its trials; overridden ones (SET) may differ.
    """
    own, member = study.result["own_values"], workspace.params.members[name]
    overridden, stated = overridden_keys(name, own, workspace.overrides), own_values(member, own)
    trials = [own, *({**own, **values} for values in (study.result["values"], *study.result["tried"].values()))]
    is_known = any(all(stated[key] == values[key] for key in own if key not in overridden) for values in trials)
    ignored = {*(own if is_known else overridden), "tuned_folds"}
    if "head.strength" in ignored and stated["head.strength"] != CHOSEN_IN_EACH_FOLD:
        ignored.add("head.strengths")  # a strength that was adopted stands in place of those that the folds choose from
    places = {f"{block}{key}" for block in ("member.", "member.train.") for key in ignored}
    places |= {"weights"} & ignored  # their digest
    after = study_subject(workspace.prepared, workspace.params, member)
    changes = changed_keys({key: study.depends.get(key) for key in after}, after)
    return [change for change in changes if change.partition(":")[0] not in places]
