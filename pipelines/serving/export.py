"""Export the blend, or one member, as one model that serves without this project: SavedModel, ONNX."""

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.errors import UserError, counted
from competition.ensemble.stored_predictions import load_scores
from competition.files.image_codec import BadImage, decode
from competition.files.manifest import read_manifest, write_json, write_text
from competition.prepare import record_files
from competition.prepare.prepared import Prepared
from competition.serving.bundle import CARD, CLASSES, DESCRIPTION, FILES, Bundle
from competition.serving.model_card import model_card, score_sentence
from competition.serving.served_models import Selection, select
from competition.training.backend import is_installed, start_tensorflow, versions
from competition.workspace.current_blend import current_blend
from competition.workspace.dependencies import export_path
from pipelines.execution.selection import selected_members
from pipelines.terminal.job import Computed, Job
from pipelines.terminal.output import display_path
from pipelines.terminal.versions import git_commit

STORED_TOLERANCE = 5e-3  # largest difference from the stored predictions, which are float16; 2e-4 is usual
EXPORT = 4  # version of the exported files; raised when their content changes
SAMPLE = 64  # images on which the formats are compared


def run(job: Job) -> None:
    """blend/<newest>/, members/*/*/fold*/weights.npz -> export/<name>/: the model, classes.txt, serving.json, README.md"""
    prepared, member = job.prepared, job.options.member
    competition = prepared.competition
    if competition.targets.kind != "single":
        instead = "use goldfold.open(RECIPE).predict(images)"
        raise UserError(f"an export answers with one class, the target is {competition.target}: {instead}")
    if member:
        selected_members(job)
    selection = select(job.workspace, member)
    formats = selected_formats(job.options.format)
    manifest_path = export_path(job.work, member)
    depends = {
        "data": prepared.digest,
        "fit": job.params.prepare.fit,
        "chain": selection.chain,
        "members": {
            name: {"architecture": one.architecture, "image_size": one.image_size, "alpha": one.alpha}
            for name, one in selection.members.items()
        },
        "models": selection.digests,
        "formats": list(formats),
        "export": EXPORT,
    }
    make = partial(write_export, job, selection, formats)
    manifest = job.cached(f"export of {selection.title}", manifest_path, depends, make)
    job.echo(*(f"export: {line}" for line in manifest.result["lines"]))
    job.echo(f"export: {display_path(manifest_path.parent)}")


def selected_formats(text: str) -> tuple[str, ...]:
    """The formats of FORMAT=, in the order of FILES. "" = saved_model, and onnx where it can be written."""
    if not text:
        return ("saved_model", "onnx") if is_installed("tf2onnx") and is_installed("onnxruntime") else ("saved_model",)
    names = [word.strip() for word in text.split(",")]
    unknown = [name for name in names if name not in FILES]
    if unknown:
        raise UserError(f"FORMAT={text}: {unknown[0]!r} is not a format; expected any of {', '.join(FILES)}")
    return tuple(name for name in FILES if name in names)


def write_export(job: Job, selection: Selection, formats: Sequence[str], folder: Path) -> Computed:
    """Write the export and compare its formats on images. Returns its files and the manifest's result."""
    prepared = job.prepared
    os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever the models were trained on
    start_tensorflow()
    from competition.serving.graph import ExportedChain
    from competition.serving.writing import write_formats

    fit, classes = job.params.prepare.fit, prepared.competition.classes
    models = sum(len(weights) for weights in selection.weights.values())
    job.echo(f"export: {selection.title}, {counted(models, 'fold model')}, as {', '.join(formats)}")
    exported = ExportedChain(selection, len(classes), job.params.plugins)
    write_formats(exported, selection, folder, formats)
    bundle = Bundle(
        selection.title,
        prepared.competition.name,
        prepared.digest,
        selection.digest,
        classes,
        tuple(exported.inputs),
        exported.features_size,
        fit,
        tuple(formats),
    )
    write_json(folder / DESCRIPTION, bundle)
    (folder / CLASSES).write_text("".join(f"{name}\n" for name in classes), encoding="utf-8")
    result = checked(job, selection, bundle, folder)
    facts = {**result, "versions": versions(), "commit": git_commit()}
    write_text(folder / CARD, model_card(bundle, selection, prepared, facts))
    outputs = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"]
    return outputs, result


def checked(job: Job, selection: Selection, bundle: Bundle, folder: Path) -> dict[str, Any]:
    """Compare the formats with each other and, for a blend of a competition with test images, with the predictions behind
    the submission. Returns the result for the manifest."""
    from competition.serving.engines import check_formats

    part = "train" if job.prepared.part("test").empty else "test"  # own photos may have no test images
    ids, images = sample_images(job.prepared, part, bundle)
    checks, probs, labels = check_formats(folder, bundle, images)
    reference, *others = checks
    lines = ["{format}: one image {milliseconds:g} ms".format(**reference)]
    lines += [
        "{format}: one image {milliseconds:g} ms, largest difference of a probability from {reference} {difference:.1e}, {changed} of "
        "{images} labels changed".format(**check, reference=reference["format"], images=len(images))
        for check in others
    ]
    stored, blend_folder = None, current_blend(job.workspace)
    if part == "test" and selection.is_blend and blend_folder is not None:
        _, scores = load_scores(blend_folder / "test.npz", ids)
        stored = float(np.abs(probs - scores).max())
        if not stored <= STORED_TOLERANCE:  # also true for NaN
            raise UserError(
                f"the exported model differs from the stored predictions by {stored:.2g} in a probability, expected at most "
                f"{STORED_TOLERANCE:g}; `make predict FORCE=1` predicts again with the packages installed now"
            )
        equal = int((labels == selection.chain.decision.labels(scores)).sum())
        labels_text = f"{equal} of {len(ids)} labels equal"
        lines.append(f"from the stored predictions (float16 views) it differs by at most {stored:.1e}; {labels_text}")
    blend = read_manifest(blend_folder / "manifest.json") if blend_folder is not None else None
    return {
        "title": bundle.title,
        "score": score_sentence(selection, blend.result if blend else None),
        "checks": checks,
        "stored": stored,
        "sample": f"{len(images)} images of the {part} rows",
        "lines": lines,
    }


def sample_images(prepared: Prepared, part: str, bundle: Bundle) -> tuple[np.ndarray, list[bytes]]:
    """The readable ones of the first SAMPLE images of a part: ids and encoded bytes.  Raises UserError if there are none."""
    ids, images = [], []
    records = chain.from_iterable(map(record_files.read_shard, prepared.records(part)))
    for record in islice(records, SAMPLE):
        with contextlib.suppress(BadImage):
            decode(record.image, bundle.sizes[0], bundle.fit)
            ids.append(record.id)
            images.append(record.image)
    if not images:
        raise UserError(f"no readable image of the {part} rows to check the export with; `make download` indexes them")
    return np.array(ids, dtype=str), images
