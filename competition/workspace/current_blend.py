"""Which stored blend is that of the current parameters, and what a blend differs in from what is here now."""

from dataclasses import dataclass
from pathlib import Path

from competition.files.manifest import Manifest, changed_keys, display_path
from competition.workspace.dependencies import (
    blend_blocks,
    blended_names,
    budget_file_of,
    external_digests,
    stored_blends,
)
from competition.workspace.ensemble_inputs import prediction_digests
from competition.workspace.runs import blended_runs
from competition.workspace.workspace import Workspace


@dataclass(frozen=True)
class Differences:
    """What a blend differs in from what is here now; () = nothing."""

    sentences: tuple[str, ...] = ()
    of_members: bool = False  # other members, fold models or predictions than those of the current parameters


def current_blend(workspace: Workspace) -> Path | None:
    """Folder of the blend of the current parameters, predictions and metric; None if there is no blend at all.

    Otherwise of the blend that comes closest, whose `differences` its user has to be told: one of the same members, external files and
    predictions, as far as there is one, with the fewest other parameters, and of those the one made or confirmed last.
    """
    params, metric = workspace.params, workspace.prepared.competition.metric
    runs, names, blocks = blended_runs(workspace), blended_names(params), blend_blocks(params)
    external = {name: external_digests(params.external[name]) for name in names & set(params.external)}
    predictions = {name: prediction_digests(runs[name], params) for name in runs} | external

    def distance(blend: tuple[Path, Manifest]) -> tuple[bool, bool, bool, int]:
        depends = blend[1].depends
        blended = depends.get("predictions", {})
        is_of_other_files = any(blended.get(name) != digests for name, digests in external.items())
        changes = len(changed_keys({block: depends.get(block, {}) for block in blocks}, blocks))
        changes += blend[1].result.get("metric") != metric
        is_of_other_models = depends.get("data") != workspace.prepared.digest or blended != predictions
        return set(blended) != names, is_of_other_files, is_of_other_models, changes

    return min(stored_blends(workspace.folder), key=distance, default=(None, None))[0]


def differences(workspace: Workspace, file: Path, blend: Manifest) -> Differences:
    """What `blend` differs in from the results of these parameters.  file: of the parameters, for the sentences."""
    params, prepared, shown = workspace.params, workspace.prepared, display_path(file)
    blended, sentences = blend.depends.get("predictions", {}), list[str]()
    of_budget = budget_file_of(blended, workspace.folder, params)
    if of_budget:
        call = f"`make report PARAMS={display_path(of_budget)}`"
        sentences.append(
            f"The blend is of members that HOURS= made and {shown} does not name; {call} shows them with their parameters."
        )
    else:
        runs, external = blended_runs(workspace), params.external
        trained = (name for name in blended if name in runs and prediction_digests(runs[name], params) != blended[name])
        files = (name for name in blended if name in external and external_digests(external[name]) != blended[name])
        absent, unnamed = sorted(blended_names(params) - set(blended)), sorted(set(blended) - blended_names(params))
        names = [", ".join(each) for each in (absent, unnamed, trained, files)]
        texts = [
            f"The blend is of {', '.join(blended)}, without {names[0]}; `make train predict` includes it.",
            f"The blend has {names[1]}, which {shown} does not name.",
            f"The blend has other fold models or predictions of {names[2]} than those of the current parameters; if it was made with "
            "SET=, repeat that here, else `make train predict` makes one with them.",
            f"The blend has other predictions of {names[3]}, or another digest of their folds, than there are now; `make blend` includes "
            "them.",
        ]
        sentences += [text for listed, text in zip(names, texts, strict=True) if listed]
    of_members = bool(sentences)
    if blend.depends.get("data") != prepared.digest:
        other = "The blend is of other data than those that are here now; `make train predict` makes it again."
        sentences.insert(0, other)
    elif not of_budget:
        blocks = blend_blocks(params)
        changed = changed_keys({block: blend.depends.get(block, {}) for block in blocks}, blocks)
        if (metric := blend.result.get("metric")) != prepared.competition.metric:
            changed.append(f"competition.metric: {metric} -> {prepared.competition.metric}")
        if changed:
            stale = f"The blend was made with other parameters ({'; '.join(changed[:3])}); `make blend` makes it again."
            sentences.append(stale)
    return Differences(tuple(sentences), of_members)
