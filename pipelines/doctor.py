"""What is here and what is wrong, each with its fix; or what a pasted error means."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from competition.artifacts.dependencies import fold_model_dependencies, fold_model_manifest, member_with_tuned_values
from competition.artifacts.manifest import files_intact, is_current, read_manifest
from competition.config.errors import UserError
from competition.data.prepared import load_prepared
from competition.kaggle import credentials, download
from competition.kaggle.client import PASSING, Client, KaggleError, Patience, slug_of
from competition.kaggle.explain import explain
from competition.kaggle.redaction import redact
from competition.kernels import api as kernels
from competition.storage import locations as storage
from pipelines.cli import main
from pipelines.runner import Job, display_path
from pipelines.versions import is_installed, versions

ROOM = 10.0  # GB that a real competition with its records and decoded images needs, about
LOOK = """
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
    fix: str = ""  # "" = nothing is wrong
    unsure: bool = False  # it could not be looked at, which is no error of this machine


def run(job: Job) -> None:
    """This machine, work/, Kaggle -> lines on the screen; exit code 1 when something must be mended"""
    if job.options.explain:
        say_explained(job, job.options.explain)
        return
    wrong = 0
    for name, look in LOOKS.items():
        for found in look(job):
            job.echo(f"{'WRONG' if found.fix else 'note ' if found.unsure else 'ok   '} {name}: {found.what}")
            if found.fix:
                wrong += 1
                job.echo(f"      {found.fix}")
    if wrong:
        raise UserError(f"{wrong} thing{'s' if wrong > 1 else ''} to mend, each with its fix above")


def say_explained(job: Job, text: str) -> None:
    found = explain(text)
    if found is None:
        raise UserError(
            "this error is not known here; paste its last lines whole, or search for them with the names of the packages"
        )
    job.echo(f"found: {redact(found.error)}\nwhy:   {found.cause}\nfix:   {found.fix}")


def python(job: Job) -> Iterator[Finding]:
    told = versions()
    fix = "" if sys.version_info >= (3, 11) else "goldfold needs Python 3.11 to 3.13: make PYTHON=python3.12"
    yield Finding(", ".join(f"{name} {number}" for name, number in told.items()), fix)
    own = [name for name in ("tensorflow-cpu", "tensorflow", "tensorflow-tpu") if is_installed(name)]
    if len(own) > 1:
        yield Finding(f"{' and '.join(own)} share one folder", f"remove all but one: pip uninstall {' '.join(own)}")


def devices(job: Job) -> Iterator[Finding]:
    machine = storage.machine(os.environ, os.path.exists)
    yield Finding(f"this is: {machine}")
    seen = {}
    for package in ("tensorflow", "jax"):
        if importlib.util.find_spec(package) is None:
            continue
        asked = subprocess.run([sys.executable, "-c", LOOK, package], capture_output=True, text=True)
        if asked.returncode:
            text = " ".join(redact(asked.stderr).split())
            known = explain(text)
            yield Finding(f"{package} does not start: {text[-200:]}", known.fix if known else "install it anew")
            continue
        seen[package] = json.loads(asked.stdout.splitlines()[-1])
        kinds = sorted(set(seen[package]))
        yield Finding(f"{package} sees " + ", ".join(f"{seen[package].count(kind)} x {kind}" for kind in kinds))
    if "tpu" in machine and not any("TPU" in found for found in seen.values()):
        yield Finding(
            "a TPU machine whose TPU nobody sees; Kaggle's and Colab's images bring a TensorFlow for CPUs",
            "pip install 'jax[tpu]' (device.backend: auto then takes JAX), or tensorflow-tpu==2.19.1 alone",
        )
    elif "tpu" in machine and "TPU" not in seen.get("tensorflow", []):
        yield Finding("TensorFlow here is the one for CPUs: it feeds, JAX trains on the TPU")


def kaggle(job: Job) -> Iterator[Finding]:
    """The credential, the competition as this account sees it, the week's hours. A local competition needs none."""
    slug, how = job.params.competition.slug, job.params.kaggle
    needed = bool(slug) and not job.params.competition.miniature
    try:
        found = credentials.find(os.environ)
    except UserError as user_error:
        yield Finding("no credential", str(user_error)) if needed else Finding("no credential, and none is needed")
        return
    yield Finding(f"{found.kind} from {found.source}" + (f" ({found.username})" if found.username else ""))
    for warning in found.warnings:
        yield Finding("the credential", warning)
    client = Client(os.environ, Patience(1, how.first_wait, how.longest_wait, how.stall), job.echo)
    if needed:
        try:
            state = download.preflight(client, slug_of(slug))
        except UserError as user_error:
            yield Finding(f"the competition {slug}", str(user_error))
            if isinstance(user_error, KaggleError) and user_error.kind in {"credentials", *PASSING}:
                return  # the next question would fail in the same way
        else:
            yield Finding(f"{state.title}: rules accepted, {state.daily} submissions a day")
            if state.closed:
                yield Finding(f"{slug} takes no submissions (any more); training and honest scores work", unsure=True)
            elif state.kernels_only and how.submit == "file":
                yield Finding(
                    f"{slug} takes submissions from notebooks only, kaggle.submit is file",
                    "set kaggle.submit to notebook, then `make kernel submit`",
                )
    try:
        quota = kernels.quota(client)
    except UserError as user_error:
        yield Finding(f"the week's hours of GPU and TPU could not be asked: {user_error}", unsure=True)
        return
    yield Finding(
        f"Kaggle answers; this week {quota.tpu_used:.1f} of {quota.tpu_allowed:.1f} h of TPU and {quota.gpu_used:.1f} of "
        f"{quota.gpu_allowed:.1f} h of GPU are used, renewed {quota.refresh[:16]}"
    )


def disk(job: Job) -> Iterator[Finding]:
    free = shutil.disk_usage(job.work).free / 1e9
    small = job.params.competition.adapter == "digits" or job.params.competition.miniature > 0
    need = 1.0 if small else ROOM
    fix = f"{need:.0f} GB are needed, about: make room, or link work/ to a larger disk" if free < need else ""
    yield Finding(f"{free:.1f} GB free for {display_path(job.work)}", fix)


def data(job: Job) -> Iterator[Finding]:
    for name, manifest in (("raw files", job.path("raw.json")), ("index and folds", job.path("data", "manifest.json"))):
        made = read_manifest(manifest)
        if made is None:
            yield Finding(f"{name}: none yet; `make download` brings them")
            return
        whole = files_intact(manifest, made)
        fix = "" if whole else "make download FORCE=1"
        yield Finding(f"{name}: {len(made.files):,} files, {'whole' if whole else 'damaged'}", fix)
    prepared = load_prepared(job.path("data"))
    counts = prepared.part("train")["fold"].value_counts().sort_index()
    yield Finding(
        f"{len(prepared.part('train')):,} training and {len(prepared.part('test')):,} test images, "
        f"{len(prepared.competition.classes)} classes, {len(counts)} folds of {counts.min():,} to {counts.max():,} rows"
    )
    for name in job.params.members:
        member, _ = member_with_tuned_values(job.work, job.params, name, job.overrides)
        folds = range(job.params.prepare.folds)
        done = [
            fold
            for fold in folds
            if is_current(
                fold_model_manifest(job.work, name, fold),
                fold_model_dependencies(job.work, prepared, job.params, member, fold),
            )
        ]
        yield Finding(f"{name}: {len(done)} of {len(folds)} fold models trained and current")


def place(job: Job) -> Iterator[Finding]:
    """Where `make resolve` would find the records."""
    bucket, how = job.params.storage.bucket, job.params.storage
    if not bucket:
        yield Finding("the local disk")
        return
    try:
        tried = storage.try_place(bucket, os.environ, how.seconds)
        yield Finding(f"{bucket}: {tried.files} entries, answers in {tried.seconds:.1f} s")
    except UserError as user_error:
        yield Finding(bucket, str(user_error))


LOOKS: dict[str, Callable[[Job], Iterator[Finding]]] = {
    "python": python,
    "disk": disk,
    "kaggle": kaggle,
    "data": data,
    "storage": place,
    "devices": devices,  # last: TensorFlow and JAX take seconds to start
}


if __name__ == "__main__":
    main("doctor")
