"""Predict out-of-fold and test rows by fold models under every view, each once."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.errors import UserError, counted
from competition.files.manifest import Stored, changed_keys, read_manifest
from competition.training.versions import TRAINING
from competition.workspace.dependencies import fold_manifest_path, fold_model, fold_views
from competition.workspace.runs import Run, blended_runs, changes_between, stored_runs
from competition.workspace.studies import head_entry
from pipelines.execution.open_trainer import TrainerInputs, open_trainer, read_images, start_device
from pipelines.terminal.job import Computed, Job
from pipelines.terminal.progress import Bar

if TYPE_CHECKING:
    from competition.input_pipeline.labelled_images import Images
    from competition.training.trainer import Trainer


def stale_folds(job: Job, run: Run, is_named: bool) -> dict[int, Stored]:
    """Fold -> the predictions that are missing, of the fold models of a run that are current.

    is_named: the run is named in blend.members; nothing can train its missing fold models.
    Raises UserError with the command that trains the missing ones, unless --allow-partial is set.
    """
    folds = range(job.params.prepare.folds)
    reasons = {}  # fold -> why its model is not current
    for fold in folds:
        model = fold_model(run, fold)
        if not model.is_current:
            manifest = read_manifest(model.manifest)
            changes = changed_keys(manifest.depends, model.depends) if manifest else ["not trained"]
            reasons[fold] = "; ".join(changes[:3]) or "its files were damaged"
    if reasons and not job.options.allow_partial:
        raise missing_models(job, run, is_named, reasons)
    predictions = {fold: fold_views(run, job.params, fold) for fold in folds if fold not in reasons}
    missing = [fold for fold, stored in predictions.items() if job.options.force or not stored.is_current]
    stale = {fold: predictions[fold] for fold in job.hosts.decided(missing)}
    if len(predictions) > len(stale):
        current = len(predictions) - len(stale)
        job.echo(f"predict {run.title}: {current} of {len(predictions)} fold models current")
    if stale and (run.depends["data"] != job.prepared.digest or run.depends["training_version"] != TRAINING):
        other = "data" if run.depends["data"] != job.prepared.digest else "version of training"
        raise UserError(
            f"run {run.label} was trained with other {other} and its fold models have no predictions under these views; "
            f"remove it from blend.members, or return to the {other} and predict.views that it was predicted with"
        )
    return stale


def missing_models(job: Job, run: Run, is_named: bool, reasons: Mapping[int, str]) -> UserError:
    """The error for fold models that are not current, with the command that trains them, and those of other members.

    reasons: fold -> why.
    """
    lacking = ", ".join(f"fold {fold} ({reason})" for fold, reason in reasons.items())
    # Fewer than two folds have no honest score.
    is_enough = job.params.prepare.folds - len(reasons) > 1
    without = "; `make predict ALLOW_PARTIAL=1` predicts with the other folds" if is_enough else ""
    if is_named:
        return UserError(f"run {run.label} lacks {lacking}{without or '; adopt and train it, or name another one'}")
    others = [other for other in stored_runs(job.work, run.name) if other.digest != run.digest]
    if others and not run.folder.exists():
        changes = changes_between(others[-1], run)
        lacking += f" in this run (its run {others[-1].label} differs: {'; '.join(changes[:3])})"
    stale = {
        one.title: sum(not fold_model(one, fold).is_current for fold in range(job.params.prepare.folds))
        for name, runs in blended_runs(job.workspace).items()
        for one in runs
        if "@" not in name and one.digest != run.digest
    }
    if also := [f"{title} lacks {counted(count, 'fold')}" for title, count in stale.items() if count]:
        return UserError(
            f"member {run.title} lacks {lacking}; {', '.join(also)}; `make train` trains them all{without}"
        )
    train = f"make train MEMBER={run.name}" + (f" FOLD={min(reasons)}" if len(reasons) == 1 else "")
    return UserError(f"member {run.title} lacks {lacking}; `{train}` trains it{without}")


def predict_folds(job: Job, run: Run, stale: Mapping[int, Stored]) -> None:
    """Predict by the fold models in `stale`: fold -> its predictions."""
    device, views, name = start_device(job), job.params.views_of(run.member), run.title
    passes = f"{counted(len(views), 'view')} of {counted(len(stale), 'fold model')}"
    job.echo(f"predict {name}: on {device.replicas} x {device.kind}; {passes}")
    if run.member.head is None:
        inputs = TrainerInputs(parts=("train",), engine=job.engines.pop(run.digest, None))
        test = read_images(job, run.member, ("test",), name)
    else:
        from competition.input_pipeline.labelled_images import with_labels

        if head_entry(job.params, run.member)["also"] != run.depends["also"]:
            raise UserError(
                f"run {run.label} was fitted to features of other networks than those that head.also names now; remove it from "
                "blend.members, or return to the members that it was fitted with"
            )
        inputs = TrainerInputs(parts=("train", "test"))
        test = with_labels(job.prepared, ("test",))
    trainer = open_trainer(job, run.member, name, device, inputs)
    with Bar(len(stale), f"predict {name}", "fold models") as bar:
        for fold, predictions in stale.items():
            predict = partial(predict_fold, trainer, test, fold_manifest_path(run, fold).parent, fold, views)
            job.cached(f"predict {name} fold {fold}", predictions.manifest, predictions.depends, predict)
            bar.update()


def predict_fold(
    trainer: "Trainer", test: "Images", model: Path, fold: int, views: Sequence[str], folder: Path
) -> Computed:
    """Predict the held-out rows and the test rows under every view, and write them to `folder`.

    model: folder of the fold model.
    """
    from competition.training.checkpoint import load_arrays

    weights, train = load_arrays(model / "weights.npz"), trainer.images
    held_out_rows, test_rows = np.flatnonzero(train.folds == fold), np.arange(len(test.ids))
    files = [folder / "oof.npz", folder / "test.npz"]
    trainer.predict(weights, train, held_out_rows, views).save(files[0])
    trainer.predict(None, test, test_rows, views).save(files[1])
    return files, {"oof_rows": len(held_out_rows), "test_rows": len(test_rows)}
