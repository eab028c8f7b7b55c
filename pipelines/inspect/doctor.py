"""Check this machine and its results and print a fix for each error; or explain a pasted error message."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from competition.config.errors import UserError, counted
from competition.config.redaction import redact
from competition.files.manifest import files_intact, read_manifest
from competition.input_pipeline.decoded_cache import usable_bytes
from competition.kaggle import credentials, download
from competition.kaggle.client import Client, competition_slug
from competition.kaggle.errors import RETRYABLE, KaggleError
from competition.kaggle.explain import explain
from competition.kernels import api as kernels
from competition.storage import locations
from competition.training.backend import is_installed, versions
from competition.training.device import TPU_FILES, TPU_SIGNS
from competition.training.memory import available_bytes, memory_warning, training_bytes
from competition.workspace.dependencies import fold_model
from competition.workspace.runs import runs_of
from pipelines.terminal.job import Job, image_cache
from pipelines.terminal.output import display_path

DISK_GIGABYTES = 10.0  # approximate need of a real competition with records and decoded images
LIST_DEVICES = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
if sys.argv[1] == "tensorflow":
    import tensorflow as tf
    print(json.dumps([device.device_type for device in tf.config.list_physical_devices()]))
else:
    import jax
    print(json.dumps([device.platform.upper() for device in jax.devices()]))
"""


@dataclass(frozen=True)
class Finding:
    what: str
    fix: str = ""  # "" = no error
    unsure: bool = False  # the check was not possible, which is not an error of this machine


def run(job: Job) -> None:
    """This machine, work/, Kaggle -> lines on the screen; exit code 1 after an error"""
    if job.options.explain:
        explanation = explain(job.options.explain)
        if explanation is None:
            raise UserError(
                "no known error of TensorFlow, JAX or Kaggle is in this text; paste its last lines completely. A sentence that "
                "starts with `goldfold:` says itself what to do"
            )
        job.echo(f"found: {redact(explanation.error)}", f"why:   {explanation.cause}", f"fix:   {explanation.fix}")
        return
    errors = 0
    for name, findings in {check.__name__: check(job) for check in CHECKS}.items():
        for finding in findings:
            mark = "WRONG" if finding.fix else "note " if finding.unsure else "ok   "
            job.echo(f"{mark} {name}: {finding.what}")
            if finding.fix:
                errors += 1
                job.echo(f"      {finding.fix}")
    if errors:
        raise UserError(f"{errors} error{'s' if errors > 1 else ''}, each with its fix above")


def python(job: Job) -> Iterator[Finding]:
    yield Finding(", ".join(f"{name} {number}" for name, number in versions().items()))
    tensorflows = [name for name in ("tensorflow-cpu", "tensorflow", "tensorflow-tpu") if is_installed(name)]
    if len(tensorflows) > 1:
        what = f"{' and '.join(tensorflows)} share one folder"
        yield Finding(what, f"remove all but one: pip uninstall {' '.join(tensorflows)}")


def devices(job: Job) -> Iterator[Finding]:
    """What TensorFlow and JAX see. The call starts both, in processes of their own; they take seconds, for the other checks."""
    processes = {
        package: subprocess.Popen(
            [sys.executable, "-c", LIST_DEVICES, package], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for package in ("tensorflow", "jax")
        if importlib.util.find_spec(package) is not None
    }
    return device_findings(processes)


def device_findings(processes: "Mapping[str, subprocess.Popen[str]]") -> Iterator[Finding]:
    """What the processes say.  processes: package -> the process that lists its devices."""
    machine = locations.machine(os.environ, os.path.exists)
    has_tpu = "tpu" in machine or any(map(os.path.exists, TPU_FILES)) or any(sign in os.environ for sign in TPU_SIGNS)
    yield Finding(f"kind of machine: {machine}{', with a TPU' * (has_tpu and 'tpu' not in machine)}")
    device_kinds = {}
    for package, process in processes.items():
        output, error_text = process.communicate()
        if process.returncode:
            text = " ".join(redact(error_text).split())
            explanation = explain(text)
            fix = explanation.fix if explanation else "reinstall it"
            yield Finding(f"{package} does not start: {text[-200:]}", fix)
            continue
        device_kinds[package] = json.loads(output.splitlines()[-1])
        kinds = sorted(set(device_kinds[package]))
        yield Finding(f"{package} sees " + ", ".join(f"{device_kinds[package].count(kind)} x {kind}" for kind in kinds))
    if has_tpu and not any("TPU" in kinds_seen for kinds_seen in device_kinds.values()):
        yield Finding(
            "this machine has a TPU, but neither TensorFlow nor JAX sees it; Kaggle's and Colab's images contain TensorFlow for CPUs",
            "pip install 'jax[tpu]' (device.backend: auto then takes JAX), or tensorflow-tpu==2.19.1 alone",
        )
    elif has_tpu and "TPU" not in device_kinds.get("tensorflow", []):
        yield Finding("TensorFlow is the build for CPUs: it reads the data, JAX trains on the TPU")


def kaggle(job: Job) -> Iterator[Finding]:
    """Check the credential, access to the competition and the weekly quota. A local competition needs none of them."""
    slug, settings = job.params.competition.slug, job.params.kaggle
    needed = bool(slug) and not job.params.competition.miniature
    try:
        credential = credentials.find_credential(os.environ)
    except UserError as user_error:
        yield Finding("no credential", str(user_error)) if needed else Finding("no credential, and none is needed")
        return
    yield Finding(str(credential))
    for warning in credential.warnings:
        yield Finding("the credential", warning)
    client = Client(os.environ, replace(settings, max_attempts=1), job.echo)
    if needed:
        try:
            state = download.require_access(client, competition_slug(slug))
        except UserError as user_error:
            yield Finding(f"the competition {slug}", str(user_error))
            if isinstance(user_error, KaggleError) and user_error.kind in {"credentials", *RETRYABLE}:
                return  # the next request would fail in the same way
        else:
            yield Finding(state.summary, unsure=state.entered is None)
            if state.closed:
                closed = f"{slug} takes no submissions (any more)"
                yield Finding(f"{closed}; training and honest scores still work", unsure=True)
            elif state.kernels_only and settings.submit == "file":
                yield Finding(
                    f"{slug} takes submissions from notebooks only, kaggle.submit is file",
                    "set kaggle.submit to notebook, then `make kernel submit`",
                )
    try:
        quota = kernels.quota(client)
    except UserError as user_error:
        yield Finding(f"could not read the weekly quota: {user_error}", unsure=True)
        return
    for device in ("TPU", "GPU"):
        yield Finding(quota.summary[device], unsure=quota.left[device] is None)


def disk(job: Job) -> Iterator[Finding]:
    free = shutil.disk_usage(job.work).free / 1e9
    small = job.params.competition.adapter in ("digits", "noisy_digits") or job.params.competition.miniature > 0
    need = 0.0 if job.path("data", "manifest.json").exists() else 1.0 if small else DISK_GIGABYTES  # see decoded_images
    fix = f"about {need:.0f} GB are needed: free some space, or link work/ to a larger disk" if free < need else ""
    yield Finding(f"{free:.1f} GB free for {display_path(job.work)}", fix)


def memory(job: Job) -> Iterator[Finding]:
    """What training batches take at least, against the memory that is available to this process."""
    available = available_bytes()
    if available is None:
        return
    trained = {name: member for name, member in job.params.members.items() if member.head is None}
    warnings = [memory_warning(name, member, available) for name, member in trained.items()]
    yield from (Finding(warning, unsure=True) for warning in warnings if warning)
    most = max((training_bytes(member) for member in trained.values()), default=0) / 1e9
    batches = f", batches take up to {most:.1f} GB on a CPU, without the network" if trained else ""
    yield Finding(f"{available / 1e9:.1f} GB of memory available{batches}")


def decoded_images(job: Job) -> Iterator[Finding]:
    """What the decoded images of every size take, against what they may take. Training streams those that do not fit."""
    budget = image_cache(job)
    usable, rows = usable_bytes(budget), job.prepared.index["part"].isin(("train", "external", "test")).sum()
    for size in sorted({member.image_size for member in job.params.members.values()}):
        need = int(rows) * size * size * 3
        fits = need <= max(usable, budget.ram)
        what = f"decoded images of {size} px take {need / 1e9:.1f} GB, {usable / 1e9:.1f} GB may be used on disk"
        if not fits:
            what += ": every epoch decodes what does not fit; a larger cache.disk_gigabytes, or cache.folder on a larger disk, avoids it"
        yield Finding(what, unsure=not fits)


def data(job: Job) -> Iterator[Finding]:
    for name, manifest in (("raw files", job.path("raw.json")), ("index and folds", job.path("data", "manifest.json"))):
        result = read_manifest(manifest)
        if result is None:
            yield Finding(f"{name}: none yet; `make download` downloads them")
            return
        intact = files_intact(manifest, result)
        fix = "" if intact else "make download FORCE=1"
        yield Finding(f"{name}: {counted(len(result.files), 'file')}, {'intact' if intact else 'damaged'}", fix)
    prepared = job.prepared
    counts = prepared.part("train")["fold"].value_counts().sort_index()
    yield Finding(
        f"{len(prepared.part('train')):,} training and {counted(len(prepared.part('test')), 'test image')}, "
        f"{len(prepared.competition.classes)} classes, {len(counts)} folds of {counts.min():,} to {counts.max():,} rows"
    )
    yield from decoded_images(job)
    for name in job.params.members:
        for run in runs_of(job.workspace, name):
            trained = [fold for fold in range(job.params.prepare.folds) if fold_model(run, fold).is_current]
            count = f"{len(trained)} of {job.params.prepare.folds} fold models"
            yield Finding(f"{run.title}: {count} trained and current (run {run.label})")


def storage(job: Job) -> Iterator[Finding]:
    """Check that storage.bucket is readable, if there is one."""
    settings = job.params.storage
    if not settings.bucket:
        yield Finding("the local disk")
        return
    try:
        place = locations.try_place(settings.bucket, os.environ, settings.seconds)
        yield Finding(f"{settings.bucket} {place}".strip())
    except UserError as user_error:
        yield Finding(settings.bucket, str(user_error))


CHECKS = (python, disk, memory, kaggle, data, storage, devices)  # the devices start at once and are read last
