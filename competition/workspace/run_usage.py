"""What uses a run: the current parameters, recipes, and the submissions in the ledger."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from competition.files.manifest import read_manifest
from competition.submission import ledger
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import Run, blended_runs, runs_of
from competition.workspace.workspace import Workspace


def runs_in_use(workspace: Workspace) -> dict[str, Run]:
    """Digest -> run of the members of these parameters, of their blend, and of all teachers."""
    runs = [run for name in workspace.params.members for run in runs_of(workspace, name)]
    runs += [run for members in blended_runs(workspace).values() for run in members]
    return {run.digest: run for run in with_teachers(runs)}


def with_teachers(runs: Sequence[Run]) -> list[Run]:
    """The runs and, after them, their direct and indirect teachers."""
    teachers = [teacher for run in runs for group in run.teachers.values() for teacher in group]
    return [*runs, *with_teachers(teachers)] if teachers else list(runs)


def submissions_by_run(workspace: Workspace, submissions: Path, runs: Sequence[Run]) -> dict[str, list[ledger.Row]]:
    """Digest of a run -> the ledger's rows of the submissions that mix it."""
    competition = workspace.params.competition
    rows = ledger.of_competition(ledger.read(submissions / "ledger.jsonl"), competition.name, competition.slug)
    return {run.digest: [row for row in rows if any(map(run.is_called, row.entry.runs))] for run in runs}


def honest_scores(work: Path, metric: str) -> dict[str, Mapping[str, float]]:
    """Digest of a run -> score and standard error on rows that chose nothing, from the newest blend with only this run of
    the member under this metric.
    """
    scores: dict[str, Mapping[str, float]] = {}
    for path in sorted((work / "blend").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime):
        manifest = read_manifest(path)
        if manifest is None or manifest.result.get("metric") != metric:
            continue
        for name, runs in manifest.depends.get("predictions", {}).items():
            if len(runs) == 1 and name in manifest.result.get("members", {}):
                scores[next(iter(runs))] = manifest.result["members"][name]
    return scores


def seconds_of_training(run: Run, folds: int) -> float:
    manifests = [read_manifest(fold_manifest_path(run, fold)) for fold in range(folds)]
    return sum(float(manifest.result.get("seconds", 0)) for manifest in manifests if manifest)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
