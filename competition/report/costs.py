"""The report's section on time, memory and cost of each stage."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from competition.files.manifest import Manifest, read_manifest
from competition.preflight.planning import duration
from competition.report.page import Section, Table
from competition.workspace.dependencies import fold_manifest_path, views_manifest
from competition.workspace.features_and_soft_labels import feature_table, networks_of
from competition.workspace.runs import Run
from competition.workspace.studies import used_study
from competition.workspace.workspace import Workspace

NOTE = (
    "Time: of the results that are used now, as measured when each was made, without the start of Python and TensorFlow; of a study, "
    "its last `make tune`. Memory: the largest peak of a process that made one of them; – for results of older versions and of other "
    "systems than Linux and macOS."
)


def stage_seconds(
    workspace: Workspace, runs: Mapping[str, Run], blend: Manifest | None
) -> dict[str, tuple[list[Manifest], float]]:
    """Stage -> (its results, seconds), of the stages that have results.  runs: by title, those of the current parameters."""
    folds = range(workspace.params.prepare.folds)
    stages: list[tuple[str, list[Manifest | None]]] = [
        ("download", [read_manifest(workspace.folder / "raw.json")]),
        ("prepare", [read_manifest(workspace.folder / "data" / "manifest.json")]),
    ]
    for name in workspace.params.members:
        study = used_study(workspace, name)
        stages.append((f"tune {name}", [read_manifest(study.folder / "manifest.json")] if study is not None else []))
    for title, run in runs.items():
        stages.append((f"train {title}", [read_manifest(fold_manifest_path(run, fold)) for fold in folds]))
        stages.append((f"predict {title}", [views_manifest(run, workspace.params, fold) for fold in folds]))
    features: dict[Path, Manifest] = {}  # each table once, however many members use it
    for member in (run.member for run in runs.values()):
        if member.head is None:
            continue
        views = {"identity", *member.head.views, *workspace.params.views_of(member)}
        for network, view, part in product(networks_of(workspace, member), views, ("train", "test")):
            table = feature_table(workspace, network, part, view).manifest
            if (manifest := read_manifest(table)) is not None:
                features[table] = manifest
    passes = [one.result["seconds_per_1000"] * one.result["rows"] / 1000 for one in features.values()]
    seconds = {"features": (list(features.values()), sum(passes))} if features else {}
    for name, manifests in [*stages, ("blend", [blend])]:
        if existing := [manifest for manifest in manifests if manifest is not None]:
            seconds[name] = existing, sum(float(manifest.result.get("seconds", 0)) for manifest in existing)
    return seconds


def costs_section(workspace: Workspace, stages: Mapping[str, tuple[Sequence[Manifest], float]]) -> Section | None:
    """None before anything was made.  stages: of `stage_seconds`."""
    rows, total = [], sum(seconds for _, seconds in stages.values())
    for name, (existing, seconds) in stages.items():
        peaks = [float(one.result["peak_memory"]) for one in existing if one.result.get("peak_memory")]
        rows.append([name, f"{len(existing)}", duration(seconds), f"{max(peaks) / 1e9:.2f} GB" if peaks else "–"])
    if not rows:
        return None
    rows.append(["all", "", duration(total), ""])
    note = f"{NOTE} `make plan TOPOLOGY=v5e-8` estimates sessions and dollars on a TPU."
    table = Table(["stage", "results", "time", "peak memory"], rows, note=note)
    return Section("costs", "Time, memory and cost", "manifests of the results · every stage", [table])
