"""The stored blends: which one is that of the current parameters, what it differs in from what is here now, which is the newest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.files.manifest import Manifest, changed_keys, display_path, read_manifest, write_text
from competition.workspace.dependencies import blend_blocks, budget_file_of, external_digests
from competition.workspace.ensemble_inputs import prediction_digests
from competition.workspace.runs import blended_external, blended_runs
from competition.workspace.workspace import Workspace

NEWEST = "newest.txt"  # the folders of all blends, the one made or confirmed last at the end


@dataclass(frozen=True)
class Differences:
    """What a blend differs in from what is here now; () = nothing."""

    sentences: tuple[str, ...] = ()
    of_members: bool = False  # other members, fold models or predictions than those of the current parameters


Predictions = dict[str, dict[str, Any]]  # member of the blend -> digests of its predictions


def current_predictions(workspace: Workspace) -> Predictions:
    """Member of the blend of the current parameters -> digests of its predictions as they are now."""
    params = workspace.params
    trained_here = {name: prediction_digests(runs, params) for name, runs in blended_runs(workspace).items()}
    return trained_here | {name: external_digests(params.external[name]) for name in blended_external(params)}


def current_blend(workspace: Workspace, predictions: Predictions | None = None) -> Path | None:
    """Folder of the blend of the current parameters, predictions and metric; None if there is no blend at all.

    Otherwise of the blend that comes closest, whose `differences` its user has to know: one of the same members and data, as far
    as there is one, with the fewest other predictions, then other parameters, and of those the one made or confirmed last.
    predictions: of `current_predictions`; None = computed here.
    """
    current = current_predictions(workspace) if predictions is None else predictions
    blocks = blend_blocks(workspace.params)
    metric = workspace.prepared.competition.metric

    def distance(blend: tuple[Path, Manifest]) -> tuple[bool, bool, int, int]:
        depends, result = blend[1].depends, blend[1].result
        blended = depends.get("predictions", {})
        others = sum(blended.get(name) != digests for name, digests in current.items())
        changes = len(changed_keys({block: depends.get(block, {}) for block in blocks}, blocks))
        changes += result.get("metric") != metric
        is_of_other_data = depends.get("data") != workspace.prepared.digest
        return blended.keys() != current.keys(), is_of_other_data, others, changes

    return min(stored_blends(workspace.folder), key=distance, default=(None, None))[0]


def differences(
    workspace: Workspace, file: Path, blend: Manifest, predictions: Predictions | None = None
) -> Differences:
    """What `blend` differs in from the results of these parameters.

    file: of the parameters, for the sentences.  predictions: of `current_predictions`; None = computed here.
    """
    params, prepared, shown = workspace.params, workspace.prepared, display_path(file)
    current = current_predictions(workspace) if predictions is None else predictions
    blended, sentences = blend.depends.get("predictions", {}), list[str]()
    changed = [name for name in blended | current if blended.get(name) != current.get(name)]
    if of_budget := budget_file_of(blended, workspace.folder, params):
        call = f"`make report PARAMS={display_path(of_budget)}`"
        sentences.append(
            f"The blend is of members that HOURS= made and {shown} does not name; {call} shows them with their parameters."
        )
    elif changed:
        sentences.append(
            f"The blend has other members, fold models or predictions than {shown} has now: {', '.join(changed)}. `make train predict` "
            "makes one with them; if it was made with SET= or another parameter file, state that here."
        )
    of_members = bool(sentences)
    if blend.depends.get("data") != prepared.digest:
        other = "The blend is of other data than those that are here now; `make train predict` makes it again."
        sentences.insert(0, other)
    elif not of_budget:
        blocks = blend_blocks(params)
        parameters = changed_keys({block: blend.depends.get(block, {}) for block in blocks}, blocks)
        if (metric := blend.result.get("metric")) != prepared.competition.metric:
            parameters.append(f"competition.metric: {metric} -> {prepared.competition.metric}")
        if parameters:
            stale = (
                f"The blend was made with other parameters ({'; '.join(parameters[:3])}); `make blend` makes it again."
            )
            sentences.append(stale)
    return Differences(tuple(sentences), of_members)


def stored_blends(work: Path) -> list[tuple[Path, Manifest]]:
    """Folder and manifest of every blend, the one that `make blend` made or confirmed last at the beginning."""
    file = work / "blend" / NEWEST
    names = file.read_text(encoding="utf-8").split() if file.is_file() else []
    folders = [work / "blend" / name for name in reversed(names)]
    manifests = [(folder, read_manifest(folder / "manifest.json")) for folder in folders]
    return [(folder, manifest) for folder, manifest in manifests if manifest is not None]


def set_newest_blend(folder: Path) -> None:
    """Put this folder at the beginning of `stored_blends`. The file has one line per blend, the newest last."""
    path = folder.with_name(NEWEST)
    names = path.read_text(encoding="utf-8").split() if path.is_file() else []
    if names[-1:] != [folder.name]:
        ordered = [*(name for name in names if name != folder.name), folder.name]
        write_text(path, "".join(f"{name}\n" for name in ordered))
