"""Calls for Kaggle kernels: push, status, log, quota, and datasets for their inputs.

Kernels are private and have the competition as a data source. Their metadata never name a docker_image: with a pinned
image, Kaggle runs a TPU push on the CPU (Kaggle/kaggle-cli#1197).
"""

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.files.manifest import write_json, write_text
from competition.kaggle import credentials
from competition.kaggle.client import Client, ask
from competition.kaggle.errors import RETRYABLE, KaggleError
from competition.kernels.packing import notebook

# Requested machine -> the machine on which Kaggle runs it instead.
RETIRED = {"TpuV38": "TpuV5E8", "Tpu1VmV38": "TpuV5E8", "NvidiaTeslaP100": "NvidiaTeslaT4"}
ON_CPU = {"TpuV232", "TpuV2256"}  # accepted by Kaggle, but run on a CPU
ENDED = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")


@dataclass(frozen=True)
class Kernel:
    """Settings of a kernel."""

    owner: str
    slug: str  # at least 5 characters; also the title, from which Kaggle derives the slug
    machine_shape: str  # TpuV5E8, NvidiaTeslaT4, ... or "" for a CPU
    internet: bool
    competition: str  # slug, "" = none
    datasets: tuple[str, ...]  # owner/slug
    seconds: int  # limit of the session


@dataclass(frozen=True)
class KernelVersion:
    owner: str
    slug: str
    version: int
    url: str


@dataclass(frozen=True)
class KernelOutcome:
    status: str  # COMPLETE, ERROR, CANCEL_ACKNOWLEDGED, or the last status before the time limit
    message: str


@dataclass(frozen=True)
class Quota:
    """Hours used and allowed in this week."""

    gpu_used: float
    gpu_allowed: float
    tpu_used: float
    tpu_allowed: float
    refresh: str  # time at which the week ends, as Kaggle writes it


def default_slug(competition_name: str) -> str:
    """Slug of a competition's kernel if kernel.slug is empty."""
    return re.sub(r"[^a-z0-9]+", "-", f"goldfold-{competition_name}".lower()).strip("-")


def username(client: Client) -> str:
    """User name of the credential; the owner of kernels if kernel.owner is empty."""
    known = credentials.find_credential(client.environment).username
    name = known or ask(client, "whoami", {}, "this account")["username"]
    if not name:
        raise UserError('Kaggle does not return the user of this credential: name it with SET="kernel.owner=..."')
    return str(name)


def status(client: Client, owner: str, slug: str, version: int) -> KernelOutcome:
    """Status of a version of the kernel. version: 0 = the newest."""
    arguments = {"owner": owner, "slug": slug, "version": version}
    answer = ask(client, "kernel_status", arguments, f"{owner}/{slug}")
    return KernelOutcome(answer["status"].removeprefix("KERNEL_WORKER_STATUS_"), answer["message"])


def quota(client: Client) -> Quota:
    """Read this week's quota, which Kaggle returns in seconds."""
    answer = ask(client, "quota", {}, "the quota")
    hours = {
        f"{device}_{key}": answer.get(device, {}).get(key, 0.0) / 3600
        for device in ("gpu", "tpu")
        for key in ("used", "allowed")
    }
    return Quota(**hours, refresh=str(answer["refresh"]))


def metadata(kernel: Kernel, code_file: str) -> dict[str, Any]:
    """Content of kernel-metadata.json. UserError for a machine that Kaggle does not use, a wrong slug or dataset name."""
    if kernel.machine_shape in ON_CPU:
        raise UserError(f"Kaggle accepts {kernel.machine_shape} and runs it on a CPU: use TpuV5E8.")
    if kernel.machine_shape in RETIRED:
        actual = RETIRED[kernel.machine_shape]
        raise UserError(f"{kernel.machine_shape} is retired and silently runs on {actual}: use {actual}.")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kernel.slug) or not 5 <= len(kernel.slug) <= 50:
        raise UserError(f"{kernel.slug!r} is not a slug of a kernel: expected 5 to 50 of a-z, 0-9 and single dashes.")
    for name in kernel.datasets:
        if not re.fullmatch(r"[^/\s]+/[^/\s]+", name):
            raise UserError(f"{name!r} is not a dataset: expected owner/slug.")
    return {
        "id": f"{kernel.owner}/{kernel.slug}",
        "title": kernel.slug.replace("-", " "),
        "code_file": code_file,
        "language": "python",
        "kernel_type": "notebook" if code_file.endswith(".ipynb") else "script",
        "is_private": True,
        "enable_gpu": kernel.machine_shape.lower().startswith("nvidia"),
        "enable_tpu": kernel.machine_shape.lower().startswith("tpu"),
        "enable_internet": kernel.internet,
        **({"machine_shape": kernel.machine_shape} if kernel.machine_shape else {}),
        "competition_sources": [kernel.competition] if kernel.competition else [],
        "dataset_sources": list(kernel.datasets),
        "kernel_sources": [],
        "model_sources": [],
    }


def write_folder(kernel: Kernel, text: str, folder: Path, as_notebook: bool) -> None:
    """Write the input of `kaggle kernels push -p FOLDER`: metadata and one code file.  text: Python source."""
    code_file = f"{kernel.slug}.ipynb" if as_notebook else f"{kernel.slug}.py"
    values = metadata(kernel, code_file)
    write_text(folder / code_file, notebook(text) if as_notebook else text)
    write_json(folder / "kernel-metadata.json", values)


def push(client: Client, kernel: Kernel, text: str, as_notebook: bool = False) -> KernelVersion:
    """Push and start a new version; return Kaggle's own name of the kernel and the version number.  text: Python source."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(kernel, text, Path(folder), as_notebook)
        arguments = {"folder": folder, "seconds": kernel.seconds, "accelerator": kernel.machine_shape}
        answer = ask(client, "push", arguments, f"{kernel.owner}/{kernel.slug}", once=True)
    match = re.search(r"(?:^|/)(?:code/)?([^/]+)/([^/]+)/?$", answer["ref"] or answer["url"])
    owner, slug = match.groups() if match else (kernel.owner, kernel.slug)
    return KernelVersion(owner, slug, int(answer["version"]), answer["url"])


def follow(
    client: Client, pushed: KernelVersion, on_log: Callable[[str], None], seconds: float, pause: float
) -> KernelOutcome:
    """Pass the log to `on_log` until the kernel ends, for at most `seconds`. pause: seconds between two requests.

    A failed request for the log is ignored, because only the status decides whether the kernel still runs.
    """
    log_lines = 0
    name, until = f"{pushed.owner}/{pushed.slug}", time.monotonic() + seconds

    def on_event(event: dict[str, Any]) -> None:
        nonlocal log_lines
        if event["event"] == "log":
            log_lines = event["count"]
            on_log(event["text"])

    while True:
        outcome = status(client, pushed.owner, pushed.slug, pushed.version)
        if outcome.status in (*ENDED, "RUNNING"):
            arguments = {"owner": pushed.owner, "slug": pushed.slug, "skip": log_lines}
            try:
                ask(client, "kernel_log", arguments, name, on_event, once=True)
            except KaggleError as error:
                # RETRYABLE are temporary failures; the other three are Kaggle's answers while there is no log yet.
                if error.kind not in RETRYABLE | {"access", "missing", "client"}:
                    raise
        if outcome.status in ENDED or time.monotonic() > until:
            return outcome
        time.sleep(pause)


def upload_dataset(client: Client, name: str, files: Sequence[Path], note: str, seconds: float) -> None:
    """Upload files to a private dataset, new or as a new version, and wait until kernels can read it.

    Used for results to resume from, and for wheels and weights that a kernel without internet access needs.
    name: owner/slug.  note: description of the version.  seconds: limit of the wait.
    """
    _, slug = name.split("/")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in files:
            shutil.copyfile(file, folder / file.name)
        about = {"id": name, "title": slug.replace("-", " "), "licenses": [{"name": "other"}]}
        write_json(folder / "dataset-metadata.json", about)
        ask(client, "dataset", {"folder": str(folder), "ref": name, "note": note, "wait": seconds}, name, once=True)
