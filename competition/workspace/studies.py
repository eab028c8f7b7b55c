"""Studies of hyperparameters: where each is stored, what it depends on, and the tuned values that a member is trained with.

The result of a study is stored under the digest of what it depends on, so that other data, members or settings never
replace it. Its values are used as long as the data, the member and the member's own values are those it was made for.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from competition.config.digests import digest_of, to_plain
from competition.config.params import Member, Params
from competition.config.params_file import recorded_keys
from competition.config.plugins import plugin_digest, plugin_digests
from competition.config.search_space import AUGMENT, CHOSEN_IN_EACH_FOLD, changes_nothing, own_values, with_values
from competition.files.manifest import changed_keys, intact_manifest, path_digest, read_manifest
from competition.training.versions import FEATURES, HEADS, PROBE, TRAINING
from competition.tuning.choice import format_value
from competition.tuning.settings import overridden_keys
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from competition.prepare.prepared import Prepared

STOPPING_RULES = ("trials", "hours", "patience", "confirm_seeds")  # a study continues when they change
WITHOUT_INFLUENCE = ("members", "storage", "heartbeat", "retries")  # keys of tune that change no result of a study
DIGITS = 12  # hexadecimal digits of a digest in the name of a folder


def study_subject(prepared: "Prepared", params: Params, member: Member) -> dict[str, Any]:
    """The data and the member of a fold model or of a study."""
    return {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "member": recorded_keys(replace(member, seeds=1, views=())),
        "weights": path_digest(Path(member.weights)),  # "" if it is no file or folder on this machine
        **plugins_entry(MODELS=(member.architecture,), AUGMENTATIONS=member.train.augment),
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
        "head_views": plugins_entry(VIEWS=parts),
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


def network_digest(network: Member) -> str:
    """Equal for two members whose networks give the same features of an image."""
    return digest_of(network_dependencies(network))


def plugins_entry(**names: Iterable[str]) -> dict[str, dict[str, str]]:
    """{"plugins": name -> digest} of the user's code that a result depends on; {} if it depends on none.

    names: kind (MODELS, VIEWS, ...) -> names that the result uses, the project's own among them.
    """
    digests = plugin_digests(**names)
    return {"plugins": digests} if digests else {}


def tuning_dependencies(workspace: Workspace, name: str) -> dict[str, Any]:
    """What the result of a member's study depends on."""
    params, prepared, tune = workspace.params, workspace.prepared, workspace.params.tune
    weights, models = (
        [str(choice) for choice in tune.search[key].choices] if key in tune.search else []
        for key in ("weights", "architecture")
    )
    strengths = [key.removeprefix(AUGMENT) for key in tune.search if key.startswith(AUGMENT)]
    code = plugin_digests(MODELS=models, AUGMENTATIONS=strengths)
    return {
        **study_subject(prepared, params, params.members[name]),
        **{key: value for key, value in vars(tune).items() if key not in WITHOUT_INFLUENCE},
        "objectives": "score",  # a parameter of earlier versions: their studies stay current and can be continued
        **({"searched_weights": {choice: path_digest(Path(choice)) for choice in weights}} if weights else {}),
        **({"searched_plugins": code} if code else {}),
        "warm_start": {entry: path_digest(Path(entry)) for entry in tune.warm_start},
        "metric": prepared.competition.metric,
        "metric_code": plugin_digest("METRICS", [prepared.competition.metric]),
        "training_version": TRAINING,
    }


def is_tuned(params: Params, name: str) -> bool:
    """Return True if `make tune` searches values for this member. A student uses those of its recipe."""
    tune, member = params.tune, params.members[name]
    is_selected = bool(tune.trials and tune.folds) and name in (tune.members or [name])
    return is_selected and not member.teacher and not changes_nothing(member, tune.search)


def tuning_result_path(work: Path, name: str, depends: dict[str, Any]) -> Path:
    """Path of best.json of a member's study, beside manifest.json and study.log.  depends: of tuning_dependencies."""
    return work / "tune" / name / digest_of(depends)[:DIGITS] / "best.json"


def study_name(name: str, depends: dict[str, Any]) -> str:
    """Name of a member's study in its storage. More trials or time continue the same study."""
    same = {key: value for key, value in depends.items() if key not in STOPPING_RULES}
    return f"{name}-{digest_of(same)[:16]}"


def continued_journal(result: Path, name: str, depends: dict[str, Any]) -> Path | None:
    """The journal of the largest finished study that differs in nothing but when it stops; None if there is none.

    result: path of best.json of the new study.
    """
    journals: dict[int, Path] = {}
    for manifest_path in sorted(result.parent.parent.glob("*/manifest.json")):
        manifest, journal = read_manifest(manifest_path), manifest_path.with_name("study.log")
        if (
            manifest is not None
            and journal.is_file()
            and study_name(name, manifest.depends) == study_name(name, depends)
        ):
            journals[int(manifest.result.get("trials", 0))] = journal
    return journals[max(journals)] if journals else None


def finished_studies(work: Path, name: str) -> list[Path]:
    """Paths of best.json of a member's complete and intact studies, the newest last."""
    studies = []
    for path in (work / "tune" / name).glob("*/manifest.json"):
        manifest = intact_manifest(path)
        if manifest is not None and path.with_name("best.json").is_file():
            studies.append((str(manifest.result.get("finished", "")), path.parent.name, path.with_name("best.json")))
    return [result for _, _, result in sorted(studies)]


def used_study(workspace: Workspace, name: str) -> Path | None:
    """Path of best.json of the study whose values are used: that of the block `tune`, else the newest of this data and member."""
    current = tuning_result_path(workspace.folder, name, tuning_dependencies(workspace, name))
    studies = [s for s in finished_studies(workspace.folder, name) if not _differences(workspace, s, name)]
    return current if current in studies else studies[-1] if studies else None


def adopted_study(workspace: Workspace, name: str) -> Path | None:
    """A finished study whose result the parameter file already states; None if there is none. It is not repeated."""
    study = used_study(replace(workspace, overrides=(), loaded=workspace.prepared), name)
    if study is None:
        return None
    best, member = read_result(study), workspace.params.members[name]
    own = own_values(member, workspace.params.tune.search)
    if own.keys() != best["own_values"].keys() or not _is_adopted(study, member, own):
        return None
    settings = {"search", "folds", "trained_on", "sampler", "pruner", "seed", "trials"}
    depends = to_plain(tuning_dependencies(workspace, name))
    manifest = read_manifest(study.with_name("manifest.json"))
    recorded = manifest.depends if manifest is not None else {}
    return study if all(depends[key] == recorded.get(key) for key in settings) else None


def study_differences(workspace: Workspace, name: str) -> list[str]:
    """Changes of the data and the member since the newest study, if no study is used; [] = one is used, or there is none."""
    studies = finished_studies(workspace.folder, name)
    if not studies or used_study(workspace, name) is not None:
        return []
    return _differences(workspace, studies[-1], name)


def member_with_tuned_values(workspace: Workspace, name: str) -> tuple[Member, dict[str, str]]:
    """The member as it is trained, and key -> "value (origin)" for every tuned key."""
    member, study = workspace.params.members[name], used_study(workspace, name)
    if study is None:
        return member, {}
    best = read_result(study)
    own, values = best["own_values"], best["values"]
    stated = own_values(member, own)
    overridden = overridden_keys(name, own, workspace.overrides)
    adopted = _is_adopted(study, member, {key: value for key, value in stated.items() if key not in overridden})
    used = {key: stated[key] if adopted else value for key, value in values.items() if key not in overridden}
    origins = {}
    for key, value in stated.items():
        if key in overridden:
            origins[key] = f"{format_value(value)} (SET)"
        elif key in used:
            source = "tuned, the member's own value" if used[key] == own[key] else "tuned"
            origins[key] = f"{format_value(used[key])} ({source})"
    if used:
        folds = tuple(sorted({*member.tuned_folds, *best["folds"]}))
        member = replace(with_values(member, used), tuned_folds=folds)
    return member, origins


def _is_adopted(study: Path, member: Member, stated: Mapping[str, object]) -> bool:
    """Whether the parameter file states a trial of the study that was adopted: values unlike the own ones, or its folds.

    Folds that the file stated before the study say nothing.  study: path of best.json.  stated: searched key -> the member's value.
    """
    best, manifest = read_result(study), read_manifest(study.with_name("manifest.json"))
    before = manifest.depends["member"].get("tuned_folds", ()) if manifest is not None else ()
    has_its_folds = set(best["folds"]) <= set(member.tuned_folds) and not set(best["folds"]) <= set(before)
    return has_its_folds or any(stated[key] != best["own_values"][key] for key in stated)


def tuned_member(workspace: Workspace, name: str) -> Member:
    """The member with its tuned values, if the data are prepared and a study of them is finished."""
    if workspace.loaded is None and not (workspace.folder / "data" / "manifest.json").is_file():
        return workspace.params.members[name]
    return member_with_tuned_values(workspace, name)[0]


def tuning_trials(work: Path) -> int:
    """Number of finished trials in all studies. Trials of a continued study count once."""
    largest: dict[str, int] = {}
    for path in work.glob("tune/*/*/manifest.json"):
        if manifest := read_manifest(path):
            study = digest_of({"member": path.parts[-3], **manifest.depends, "trials": 0})
            largest[study] = max(largest.get(study, 0), int(manifest.result.get("trials", 0)))
    return sum(largest.values())


def _differences(workspace: Workspace, result: Path, name: str) -> list[str]:
    """Changes of the data and the member since a study was finished; [] = its values can be used.

    Ignored are the code, the metric and the settings of the study. The member's own values of the searched keys must be
    those of the study's first trial, or a result of it that was adopted; overridden ones (SET) may differ.
    """
    manifest = read_manifest(result.with_name("manifest.json"))
    if manifest is None:
        return [f"{result}: missing"]
    best = read_result(result)
    own = best["own_values"]
    overridden = overridden_keys(name, own, workspace.overrides)
    member = workspace.params.members[name]
    stated = own_values(member, own)
    tried = (best["values"], *best["tried"].values())
    results = [own, *({**own, **values} for values in tried)]
    is_known = any(all(stated[key] == values[key] for key in own if key not in overridden) for values in results)
    ignored = {*(set(own) if is_known else overridden), "tuned_folds"}
    if "head.strength" in ignored and stated["head.strength"] != CHOSEN_IN_EACH_FOLD:
        ignored.add("head.strengths")  # a strength that was adopted stands in place of those that the folds choose from
    places = {f"{block}{key}" for block in ("member.", "member.train.") for key in ignored}
    places |= {"weights"} & ignored  # their digest
    after = study_subject(workspace.prepared, workspace.params, member)
    changes = changed_keys({key: manifest.depends.get(key) for key in after}, after)
    return [change for change in changes if change.partition(":")[0] not in places]


def read_result(result: Path) -> dict[str, Any]:
    """Content of best.json."""
    content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return content
