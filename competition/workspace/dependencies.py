"""Paths of the results of each stage under work/<competition>, and the values that each result depends on.

Every stage takes both from here, so that no two stages disagree about what is current. A fold model belongs to a run
(competition.workspace.runs); a study's paths are in competition.workspace.studies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from competition.config.digests import digest_of
from competition.config.params import REMOVED, ExternalFiles, Member, Params
from competition.config.params_file import BUDGET_FILE
from competition.config.yaml_text import read_yaml
from competition.files.manifest import Manifest, Stored, path_digest, read_manifest
from competition.training.versions import PREDICTION
from competition.workspace.runs import Run
from competition.workspace.studies import DIGITS


@dataclass(frozen=True)
class FoldModel(Stored):
    """One model of a run: weights.npz, history.csv and oof.npz (identity view) beside its manifest."""

    fold: int  # that it is not trained on
    name: str  # for messages: slim fold 0


def fold_model(run: Run, fold: int) -> FoldModel:
    """The model of a run without this fold, as its parameters and its teachers are now.

    It does not depend on the device: a model counts as the same on any device.
    """
    # Of exactly those models whose soft labels this one learns from.
    weights = {
        teacher: [{str(fold): weights_digest(teacher_run, fold)} for teacher_run in runs]
        for teacher, runs in run.teachers.items()
    }
    depends = {**run.depends, "fold": fold, "teacher_weights": weights}
    return FoldModel(fold_manifest_path(run, fold), depends, fold, f"{run.title} {fold_names([fold])}")


def fold_views(run: Run, params: Params, fold: int) -> Stored:
    """The predictions of one fold model under the views of its member: oof.npz and test.npz.

    They depend on its weights by their digest, however they were trained.
    """
    views = params.views_of(run.member)
    depends = {
        "data": run.depends["data"],
        "fit": run.depends["fit"],
        "views": views,
        "model": weights_digest(run, fold) or "none",
        "tuned_folds": run.depends["tuned_folds"],
        "prediction_version": PREDICTION,
        **params.plugins.dependencies(VIEWS=(part for view in views for part in view.split("+"))),
    }
    folder = fold_manifest_path(run, fold).parent / "views" / digest_of(depends)[:DIGITS]
    return Stored(folder / "manifest.json", depends)


def incomplete_folds(runs: Sequence[Run], params: Params, folds: Iterable[int]) -> list[int]:
    """Folds of which one of a member's runs has no complete fold model, or no predictions of it under its views."""
    return [
        fold
        for fold in folds
        if not all(fold_model(run, fold).is_current and fold_views(run, params, fold).is_current for run in runs)
    ]


def fold_manifest_path(run: Run, fold: int) -> Path:
    """Path of the manifest of a fold model. Beside it are weights.npz, history.csv and oof.npz (identity view)."""
    return run.folder / f"fold{fold}" / "manifest.json"


def fold_names(folds: Sequence[int]) -> str:
    """fold 2; folds 0, 1, 2"""
    return f"{'folds' if len(folds) > 1 else 'fold'} {', '.join(map(str, folds))}"


def export_path(work: Path, member: str) -> Path:
    """Path of the manifest of an export, beside its model, serving.json and README.md.  member: "" = the blend."""
    return work / "export" / (f"member-{member}" if member else "blend") / "manifest.json"


def training_parts(member: Member) -> tuple[str, ...]:
    """Parts of the index whose images a member is trained on."""
    return ("train", "external") if member.external else ("train",)


def weights_digest(run: Run, fold: int) -> str:
    """Digest of the weights of one model of a run; "" if it is not trained."""
    manifest = read_manifest(fold_manifest_path(run, fold))
    return manifest.files.get("weights.npz", "") if manifest else ""


def views_manifest(run: Run, params: Params, fold: int) -> Manifest | None:
    """The manifest of a fold model's predictions under the views of its member; None if they are missing."""
    views = fold_views(run, params, fold)
    manifest = read_manifest(views.manifest)
    return manifest if manifest is not None and manifest.digest == digest_of(views.depends) else None


def soft_labels(run: Run, fold: int) -> Stored:
    """The predictions of one teacher model for the rows it was trained on: soft.npz."""
    model = weights_digest(run, fold) or "none"
    data, fit = run.depends["data"], run.depends["fit"]
    depends = {"data": data, "fit": fit, "model": model, "prediction_version": PREDICTION}
    return Stored(fold_manifest_path(run, fold).parent / "soft" / "manifest.json", depends)


def blend_blocks(params: Params) -> dict[str, Any]:
    """The parameters that a blend depends on."""
    blocks = {block: asdict(getattr(params, block)) for block in ("policy", "blend", "decision", "honest")}
    del blocks["blend"]["name"], blocks["blend"]["members"]  # the members are in its predictions
    blocks["policy"] |= REMOVED["policy"]
    return blocks


def external_digests(external: ExternalFiles) -> dict[str, str]:
    """Digests of the files of a member with external predictions, as they are now; "" for one that is missing."""
    files = {"oof": [external.oof], "test": external.test}
    digests = {part: ",".join(path_digest(Path(file)) for file in paths) for part, paths in files.items()}
    return {**digests, "folds": external.folds}


def budget_file_of(members: Iterable[str], work: Path, params: Params) -> Path | None:
    """The parameter file of the budget that made these members; None if `params` names them all, or no budget made them."""
    path, named = work / BUDGET_FILE, params.blend.members or (*params.members, *params.external)
    if not path.is_file() or set(members) <= set(named):
        return None
    return path if set(members) <= {*read_yaml(path).get("members", {}), *params.external} else None
