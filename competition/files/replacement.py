"""Replace a fold model by one that was trained again (FORCE=1), so that a kill at any moment leaves one of them complete.

The new model is trained in <run>/again/<fold> and moved into its place when it is complete; the earlier one is moved to
<run>/replaced/<fold> and removed after that.
"""

import shutil
from pathlib import Path

from filelock import FileLock

from competition.files.manifest import intact_manifest, read_manifest

AGAIN, REPLACED = "again", "replaced"
KEPT_WITH_EQUAL_WEIGHTS = ("views", "soft")  # predictions of the model


def retraining_path(run_folder: Path, manifest: Path) -> Path:
    """Where the model with this manifest is trained again."""
    return run_folder / AGAIN / manifest.relative_to(run_folder)


def training_path(run_folder: Path, manifest: Path) -> Path:
    """Where the model with this manifest is trained: apart from a complete earlier one, which stays until it is replaced."""
    return retraining_path(run_folder, manifest) if intact_manifest(manifest) else manifest


def replace_model(run_folder: Path, manifest: Path) -> None:
    """Put the model that was trained again, if it is complete, in the place of the one with this manifest.

    Continues or undoes what a killed process left.
    """
    target, again = manifest.parent, retraining_path(run_folder, manifest).parent
    replaced = run_folder / REPLACED / target.relative_to(run_folder)
    with FileLock(run_folder / "replace.lock", timeout=60):
        if new := intact_manifest(again / "manifest.json"):
            previous = read_manifest(manifest)
            if previous is not None and previous.files.get("weights.npz") == new.files.get("weights.npz"):
                for name in KEPT_WITH_EQUAL_WEIGHTS:
                    if (target / name).is_dir() and not (again / name).exists():
                        (target / name).rename(again / name)
            if target.exists():
                shutil.rmtree(replaced, ignore_errors=True)
                replaced.parent.mkdir(parents=True, exist_ok=True)
                target.rename(replaced)
            target.parent.mkdir(parents=True, exist_ok=True)
            again.rename(target)
        elif replaced.exists() and not target.exists():
            replaced.rename(target)
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        _remove_empty(run_folder)


def finish_replacements(work: Path) -> None:
    """Finish or undo all replacements that killed processes left under work/<competition>/members."""
    members = work / "members"
    for top in (AGAIN, REPLACED):
        for folder in members.glob(f"*/*/{top}/fold*"):
            run_folder = folder.parents[1]
            replace_model(run_folder, run_folder / folder.name / "manifest.json")
        for folder in members.glob(f"*/*/{top}"):
            _remove_empty(folder.parent)


def _remove_empty(run_folder: Path) -> None:
    for folder in (run_folder / AGAIN, run_folder / REPLACED):
        if folder.is_dir() and not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)
