"""Grad-CAM, or occlusion maps, of the most confident errors and of right rows, by the fold models that predicted them."""

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.chain import Chain
from competition.files.manifest import Manifest
from competition.report.classes import honest_rows
from competition.report.grad_cam import MANIFEST, SHEET, chosen_rows, overlay
from competition.report.pictures import contact_sheet, training_pixels
from competition.workspace.dependencies import fold_manifest_path, fold_model
from competition.workspace.runs import Run, runs_of
from pipelines.execution.selection import blend_of_classes, selected_members
from pipelines.terminal.job import Computed, Job, image_cache, start_backend
from pipelines.terminal.output import display_path


def run(job: Job) -> None:
    """blend/<current>/, members/<member>/<run>/fold<k>/weights.npz, cache -> grad_cam.png, grad_cam.json"""
    prepared = job.prepared
    folder, blend = blend_of_classes(job, "grad-cam shows what speaks for a class")
    if blend.depends.get("data") != prepared.digest:
        raise UserError("the blend is of other data than those that are here now; `make train predict` makes a new one")
    names, weights = selected_members(job), Chain.load(folder / "chain.json").blend.weights
    if not names:
        shown = display_path(job.options.params)
        raise UserError(f"grad-cam shows what a trained network looks at, and {shown} has external predictions only")
    name = max(names, key=lambda member: weights.get(member, 0.0))  # the chosen one, or that of the largest weight
    one = runs_of(job.workspace, name)[0]
    missing = [str(fold) for fold in range(job.params.prepare.folds) if not fold_model(one, fold).is_current]
    if missing:
        remedy = f"run `make train MEMBER={name}`"
        raise UserError(f"{one.title}: folds {', '.join(missing)} are not trained; {remedy}")
    depends = {"blend": blend.digest, "run": one.digest, "file": SHEET}
    rows = honest_rows(folder, prepared)
    manifest = job.cached("grad-cam", job.path(MANIFEST), depends, lambda _: create(job, one, rows, blend))
    job.echo(
        f"grad-cam: {manifest.result['wrong']} wrong and {manifest.result['right']} right rows by {manifest.result['run']}: "
        f"{display_path(job.path(SHEET))}; `make report` shows them"
    )


def create(job: Job, one: Run, rows: tuple[np.ndarray, ...], blend: Manifest) -> Computed:
    """Compute the maps and draw them. Returns the files and the manifest's result."""
    prepared = job.prepared
    ids, labels, predicted, scores = rows
    train = prepared.part("train").set_index("id")
    pixels = training_pixels(prepared, [one.member.image_size], job.params.prepare.fit, image_cache(job).folder)
    if pixels is None:
        remedy = "`make prepare` writes the records"
        raise UserError(f"neither the records nor decoded training images are on this machine; {remedy}")
    start_backend(job)
    from competition.training.checkpoint import load_arrays
    from competition.training.grad_cam import ClassMaps

    chosen = chosen_rows(labels, predicted, scores)
    is_wrong = labels[chosen] != predicted[chosen]
    wrong, right = chosen[is_wrong], chosen[~is_wrong]
    # A wrong row has two maps: of the predicted class and of its own.
    numbers = np.concatenate([np.repeat(wrong, 2), right])
    classes = np.concatenate([np.stack([predicted[wrong], labels[wrong]], axis=1).ravel(), labels[right]])
    position = train.index.get_indexer(ids[numbers])
    folds, names = train["fold"].to_numpy(int)[position], prepared.competition.classes
    class_maps, pictures = ClassMaps(one.member, len(names), job.params.plugins), dict[int, np.ndarray]()
    for fold in np.unique(folds):
        class_maps.load_weights(load_arrays(fold_manifest_path(one, int(fold)).with_name("weights.npz")))
        in_fold = np.flatnonzero(folds == fold)
        images = pixels[position[in_fold]]
        for n, image, one_map in zip(in_fold, images, class_maps.maps(images, classes[in_fold]), strict=True):
            pictures[int(n)] = overlay(image, one_map)
    captions = [f"for {names[c]}\nlabel {names[labels[n]]}\n{ids[n]}" for n, c in zip(numbers, classes, strict=True)]
    contact_sheet([pictures[n] for n in range(len(numbers))], captions, job.path(SHEET))
    return [job.path(SHEET)], {
        "run": one.label,
        "method": class_maps.method,
        "wrong": len(wrong),
        "right": len(right),
        "submission": blend.result["submission"],
    }
