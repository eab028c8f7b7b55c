"""Convert images to TFRecord shards named as in Kaggle's competitions, in several sizes at once."""

import json
import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from competition.config.digests import digest_of
from competition.config.errors import UserError, counted, first_few
from competition.config.params import ConvertParams
from competition.files.manifest import Manifest
from competition.input_pipeline.batch_threads import cores
from competition.prepare.adapter_types import settings_of
from competition.prepare.adapters.flowers import DESCRIPTION, FOLDER
from competition.storage import files
from competition.tfrecord_export import beam
from competition.tfrecord_export.shard import (
    MANIFESTS,
    Outcome,
    Recipe,
    Shard,
    convert_shards,
    encoded_at_sizes,
    finished_shard,
    make_shards,
    shard_digest,
)
from competition.tfrecord_export.sources import Source, read_source
from competition.training.backend import versions
from pipelines.terminal.job import Job, lock
from pipelines.terminal.options import ROOT
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar

SAMPLE_ROWS = 32  # images that are encoded to estimate the size of a shard
MANIFEST = "manifest.json"
OWN_FOLDERS = (f"{MANIFESTS}/", f"{beam.FOLDER}/")
OWN = (MANIFEST, DESCRIPTION, *OWN_FOLDERS, ".convert.lock", ".convert.holder.lock")


def run(job: Job) -> None:
    """convert.source -> convert.target: tfrecords-jpeg-HxW/{train,val,test}/NN-HxW-COUNT.tfrec, tables, manifest.json"""
    started = time.monotonic()
    params = job.params.convert
    recipe = recipe_of(job, params)
    source = read_source(recipe.source, settings_of(job.params))
    if source.competition.targets.kind != "single":
        raise UserError(f"make convert writes classes, the target is {source.competition.target}: train from images")
    shards = plan_shards(source, recipe, params)
    job.echo(*(f"convert: {note}" for note in source.competition.notes))
    number = Counter(shard.part for shard in shards)
    parts = ", ".join(
        f"{counted(len(rows), f'{part} image')} in {counted(number[part], 'shard')}"
        for part, rows in source.rows.items()
    )
    sizes = ", ".join(map(str, recipe.sizes))
    job.echo(f"convert: {parts}; {len(source.competition.classes)} classes; {sizes} pixels")
    needed = {"recipe": recipe.digest_fields(), "shards": {s.manifest: shard_digest(s, recipe) for s in shards}}
    # One conversion at a time into a local target.
    with nullcontext() if files.is_remote(recipe.target) else lock(Path(recipe.target) / ".convert.lock"):
        files.clear_partial(recipe.target)  # left by killed conversions
        present = files.names(recipe.target)
        is_own = any(name == MANIFEST or name.startswith(OWN_FOLDERS) for name in present)
        others = [name for name in present if not name.startswith(OWN)]
        if others and not is_own:
            raise UserError(f"convert.target: {recipe.target} holds {first_few(others, 3)}; name an empty folder")
        manifest = files.read_json(f"{recipe.target}/{MANIFEST}")
        if manifest and manifest.get("digest") != digest_of(needed):
            files.remove(f"{recipe.target}/{MANIFEST}")
        outcomes = convert(job, shards, recipe, params)
        publish_result(recipe.target, source, shards, outcomes, needed)
        files.clear_partial(recipe.target)
    report_result(job, recipe, outcomes, time.monotonic() - started)


def recipe_of(job: Job, params: ConvertParams) -> Recipe:
    source = job.options.source or params.source
    if not source:
        job.workspace.require(job.path("raw.json"))
        source = str(job.path("raw"))
    if not files.is_remote(source) and not Path(source).is_dir():
        raise UserError(f"convert.source: {source} is not a folder; name a local folder, gs://NAME/FOLDER or s3://...")
    target = job.options.target or params.target or str(job.path("converted"))
    source, target = (
        path.rstrip("/") if files.is_remote(path) else str(Path(path).resolve()) for path in (source, target)
    )
    if source == target:
        raise UserError(f"convert.target: {target} is also the source; name another folder")
    return Recipe(
        source=source,
        target=target,
        sizes=tuple(sorted(set(params.sizes))),
        kind=params.kind,
        quality=params.quality if params.kind == "jpeg" else 0,
        fit=params.fit,
        bad_images=params.bad_images,
    )


def plan_shards(source: Source, recipe: Recipe, params: ConvertParams) -> list[Shard]:
    every_row = [row for rows in source.rows.values() for row in rows]
    spaced_rows = every_row[:: max(1, math.ceil(len(every_row) / SAMPLE_ROWS))]
    largest = replace(recipe, sizes=(max(recipe.sizes),))
    lengths = [len(image) for row in spaced_rows for image in encoded_at_sizes(row, largest, [], [])]
    mean_length = sum(lengths) / max(1, len(lengths))
    shards: list[Shard] = []
    for part, rows in source.rows.items():
        count = math.ceil(len(rows) * mean_length / (params.shard_megabytes * 1_000_000))
        count = min(len(rows), max(1, count, params.least_shards))
        shards += make_shards(part, rows, count)
    return shards


def convert(job: Job, shards: Sequence[Shard], recipe: Recipe, params: ConvertParams) -> list[Outcome]:
    """Convert all shards that are not finished and return the outcomes, in the order of the shards."""
    for shard in shards if job.options.force else ():
        if files.exists(f"{recipe.target}/{shard.manifest}"):
            files.remove(f"{recipe.target}/{shard.manifest}")
    if params.engine == "beam":
        beam.save_work(shards, recipe)
        in_beam(params, recipe.target)
        finished = [finished_shard(shard, recipe) for shard in shards]
        missing = [f"{shard.part}-{shard.name}" for shard, outcome in zip(shards, finished) if outcome is None]
        if missing:
            raise UserError(f"Apache Beam ended without the shards {first_few(missing)}; run the command again")
        return [outcome for outcome in finished if outcome is not None]
    outcomes: dict[tuple[str, str], Outcome] = {}
    with Bar(len(shards), "convert", "shards") as bar:
        for outcome in convert_shards(shards, recipe, params.processes or cores()):
            outcomes[outcome.part, outcome.name] = outcome
            bar.update()
    return [outcomes[shard.part, shard.name] for shard in shards]


def in_beam(params: ConvertParams, target: str) -> None:
    """Convert the work list in the target, in the environment of Apache Beam. Raises UserError if it fails.

    The options may hold secrets, so no list of processes shows them.
    """
    python = ROOT / os.path.expanduser(params.beam_python)
    if not python.exists():
        raise UserError(f"convert.beam_python: {python} does not exist; `make beam` installs Apache Beam there")
    command = [str(python), "-m", "pipelines.execution.convert_beam", target]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, input=json.dumps(params.beam_options))
    if ran.returncode != 0:
        lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()] or ["no message"]
        causes = [line.partition("UserError: ")[2] for line in lines if "UserError: " in line]
        cause = (causes or lines[-1:])[0].removeprefix("goldfold: ")
        raise UserError(f"Apache Beam failed: {cause}; see convert.beam_options, or `make beam` to install it again")


def publish_result(
    target: str, source: Source, shards: Sequence[Shard], outcomes: Sequence[Outcome], needed: Mapping[str, object]
) -> None:
    """Write the tables, remove what belongs to no shard, and write the manifest last.  needed: what the result depends on."""
    written = {name: digest for outcome in outcomes for name, digest in outcome.files.items()}
    tables = {**source.tables, DESCRIPTION: source.competition.json_bytes()}
    for name, content in tables.items():
        files.write_bytes(f"{target}/{name}", content)
        written[name] = str(files.digest(f"{target}/{name}"))
    current_files = {*written, *(shard.manifest for shard in shards)}
    for name in files.names(target):
        if name not in current_files and (FOLDER.fullmatch(name.split("/")[0]) or name.startswith(f"{MANIFESTS}/")):
            files.remove(f"{target}/{name}")
    parts = dict.fromkeys(outcome.part for outcome in outcomes)
    result = {
        "images": {part: sum(outcome.written for outcome in outcomes if outcome.part == part) for part in parts},
        "dropped": [row_id for outcome in outcomes for row_id in outcome.dropped],
        "replaced": [row_id for outcome in outcomes for row_id in outcome.replaced],
    }
    manifest = Manifest(digest_of(needed), dict(needed), written, result, versions())
    files.write_json(f"{target}/{MANIFEST}", asdict(manifest))
    for name in files.names(f"{target}/{beam.FOLDER}"):
        files.remove(f"{target}/{beam.FOLDER}/{name}")


def report_result(job: Job, recipe: Recipe, outcomes: Sequence[Outcome], seconds: float) -> None:
    dropped, replaced = (sum(len(getattr(o, name)) for o in outcomes) for name in ("dropped", "replaced"))
    if dropped:
        job.echo(f"convert: {counted(dropped, 'unreadable labelled image')} dropped (ids: manifest.json)")
    if replaced:
        job.echo(f"convert: WARNING {counted(replaced, 'unreadable test image')} made grey (ids: manifest.json)")
    target = recipe.target if files.is_remote(recipe.target) else display_path(Path(recipe.target))
    reused = sum(outcome.reused for outcome in outcomes)
    if reused == len(outcomes):
        job.echo(f"convert: current, {counted(len(outcomes), 'shard')} in {target}")
        return
    images = sum(outcome.written for outcome in outcomes if not outcome.reused)
    finished = f", {reused} were finished before" if reused else ""
    job.echo(
        f"convert: {counted(len(outcomes) - reused, 'shard')} written{finished}; {counted(images, 'image')} at "
        f"{counted(len(recipe.sizes), 'size')} in {seconds:.0f} s, {target}"
    )
