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
    """Sentences; () = none."""

    data: tuple[str, ...] = ()
    members: tuple[str, ...] = ()  # other members, fold models or predictions than those of the current parameters
    parameters: tuple[str, ...] = ()  # of the blend itself

    @property
    def sentences(self) -> list[str]:
        return [*self.data, *self.members, *self.parameters]


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
    of_members = _of_members(workspace, display_path(file), blend)
    if blend.depends.get("data") != workspace.prepared.digest:
        text = "The blend is of other data than those that are here now; `make train predict` makes it again."
        return Differences((text,), of_members)
    if budget_file_of(blend.depends.get("predictions", {}), workspace.folder, workspace.params):
        return Differences((), of_members)
    blocks = blend_blocks(workspace.params)
    changed = changed_keys({block: blend.depends.get(block, {}) for block in blocks}, blocks)
    if (metric := blend.result.get("metric")) != workspace.prepared.competition.metric:
        changed.append(f"competition.metric: {metric} -> {workspace.prepared.competition.metric}")
    text = f"The blend was made with other parameters ({'; '.join(changed[:3])}); `make blend` makes it again."
    return Differences((), of_members, (text,) if changed else ())


def _of_members(workspace: Workspace, file: str, blend: Manifest) -> tuple[str, ...]:
    params, blended = workspace.params, blend.depends.get("predictions", {})
    if of_budget := budget_file_of(blended, workspace.folder, params):
        call = f"`make report PARAMS={display_path(of_budget)}`"
        return (
            f"The blend is of members that HOURS= made and {file} does not name; {call} shows them with their parameters.",
        )
    named, sentences = blended_names(params), []
    if unblended := ", ".join(sorted(named - set(blended))):
        sentences.append(
            f"The blend is of {', '.join(blended)}, without {unblended}; `make train predict` includes it."
        )
    if unnamed := ", ".join(sorted(set(blended) - named)):
        sentences.append(f"The blend has {unnamed}, which {file} does not name.")
    runs = blended_runs(workspace)
    trained = [n for n in blended if n in runs and prediction_digests(runs[n], params) != blended[n]]
    if trained:
        sentences.append(
            f"The blend has other fold models or predictions of {', '.join(trained)} than those of the current parameters; if it "
            "was made with SET=, repeat that here, else `make train predict` makes one with them."
        )
    external = [n for n in blended if n in params.external and external_digests(params.external[n]) != blended[n]]
    if external:
        sentences.append(
            f"The blend has other predictions of {', '.join(external)} than its files have now; `make blend` includes them."
        )
    return tuple(sentences)
