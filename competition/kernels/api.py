"""The same work on Kaggle's machines: push a kernel, follow it, put a dataset beside it.

A kernel is private and takes the competition as a source. Metadata is made anew every time and never names a
docker_image: a pinned image makes Kaggle run a TPU push on the CPU (Kaggle/kaggle-cli#1197).
"""

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import atomic_write, write_json
from competition.config.errors import UserError
from competition.kaggle import credentials
from competition.kaggle.client import PASSING, Client, KaggleError, ask
from competition.kernels.packing import notebook

RETIRED = {"TpuV38": "TpuV5E8", "Tpu1VmV38": "TpuV5E8", "NvidiaTeslaP100": "NvidiaTeslaT4"}  # accepted, run elsewhere
ON_CPU = {"TpuV232", "TpuV2256"}  # accepted, run on a CPU
ENDED = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")


@dataclass(frozen=True)
class Kernel:
    """How Kaggle is to run it."""

    owner: str
    slug: str  # at least 5 characters; the title is made of it, because Kaggle makes the slug of the title
    machine_shape: str  # TpuV5E8, NvidiaTeslaT4, ... or "" for a CPU
    internet: bool
    competition: str  # slug, "" = none
    datasets: tuple[str, ...]  # owner/slug
    seconds: int


@dataclass(frozen=True)
class KernelVersion:
    owner: str
    slug: str
    version: int
    url: str


@dataclass(frozen=True)
class KernelOutcome:
    status: str  # COMPLETE, ERROR, CANCEL_ACKNOWLEDGED, or the last one seen when time was over
    message: str


@dataclass(frozen=True)
class Quota:
    """Hours of the week."""

    gpu_used: float
    gpu_allowed: float
    tpu_used: float
    tpu_allowed: float
    refresh: str


def default_slug(competition_name: str) -> str:
    """What the kernel of a competition is called when kernel.slug is empty."""
    return re.sub(r"[^a-z0-9]+", "-", f"goldfold-{competition_name}".lower()).strip("-")


def username(client: Client) -> str:
    """Whose kernels they are when kernel.owner is empty: the user of the credential."""
    name = credentials.find(client.environment).username or ask(client, "whoami", {}, "this account")["username"]
    if not name:
        raise UserError('Kaggle does not say whose credential this is: name the user, SET="kernel.owner=..."')
    return str(name)


def status(client: Client, owner: str, slug: str, version: int) -> KernelOutcome:
    """Of that version; 0 = of the newest."""
    arguments = {"owner": owner, "slug": slug, "version": version}
    answer = ask(client, "kernel_status", arguments, f"{owner}/{slug}")
    return KernelOutcome(answer["status"].removeprefix("KERNEL_WORKER_STATUS_"), answer["message"])


def quota(client: Client) -> Quota:
    told = ask(client, "quota", {}, "the quota")
    none = {"used": 0.0, "allowed": 0.0}
    gpu, tpu = told.get("gpu", none), told.get("tpu", none)
    used, allowed = ((gpu[what] / 3600, tpu[what] / 3600) for what in ("used", "allowed"))
    return Quota(used[0], allowed[0], used[1], allowed[1], str(told["refresh"]))


def metadata(kernel: Kernel, code_file: str) -> dict[str, Any]:
    """kernel-metadata.json. UserError for a machine that Kaggle takes but does not run on."""
    if kernel.machine_shape in ON_CPU:
        raise UserError(f"Kaggle accepts {kernel.machine_shape} and runs it on a CPU: use TpuV5E8.")
    if kernel.machine_shape in RETIRED:
        better = RETIRED[kernel.machine_shape]
        raise UserError(f"{kernel.machine_shape} is retired and silently runs on {better}: say {better}.")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kernel.slug) or not 5 <= len(kernel.slug) <= 50:
        raise UserError(f"{kernel.slug!r} is no slug of a kernel: expected 5 to 50 of a-z, 0-9 and single dashes.")
    for name in kernel.datasets:
        if not re.fullmatch(r"[^/\s]+/[^/\s]+", name):
            raise UserError(f"{name!r} is no dataset: expected owner/slug.")
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
    """What `kaggle kernels push -p FOLDER` takes: metadata and one code file."""
    code_file = f"{kernel.slug}.ipynb" if as_notebook else f"{kernel.slug}.py"
    about = metadata(kernel, code_file)
    with atomic_write(folder / code_file) as temporary:
        temporary.write_text(notebook(text) if as_notebook else text, encoding="utf-8")
    write_json(folder / "kernel-metadata.json", about)


def push(client: Client, kernel: Kernel, text: str, as_notebook: bool = False) -> KernelVersion:
    """Push and start a new version. Kaggle's own name of the kernel and the version come back."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(kernel, text, Path(folder), as_notebook)
        arguments = {"folder": folder, "seconds": kernel.seconds, "accelerator": kernel.machine_shape}
        answer = ask(client, "push", arguments, f"{kernel.owner}/{kernel.slug}", once=True)
    found = re.search(r"(?:^|/)(?:code/)?([^/]+)/([^/]+)/?$", answer["ref"] or answer["url"])
    owner, slug = found.groups() if found else (kernel.owner, kernel.slug)
    return KernelVersion(owner, slug, int(answer["version"]), answer["url"])


def follow(
    client: Client, pushed: KernelVersion, on_log: Callable[[str], None], seconds: float, pause: float, told: int = 0
) -> KernelOutcome:
    """Pass on the log until the kernel ends or `seconds` are over. pause: seconds between two looks.

    The log may fall silent or break off for as long as it likes; only the status says whether the kernel still runs.
    """
    name, until = f"{pushed.owner}/{pushed.slug}", time.monotonic() + seconds

    def on_event(event: dict[str, Any]) -> None:
        nonlocal told
        if event["event"] == "log":
            told = event["count"]
            on_log(event["text"])

    while True:
        where = {"owner": pushed.owner, "slug": pushed.slug}
        answer = ask(client, "kernel_status", {**where, "version": pushed.version}, name)
        ended = next((status for status in ENDED if answer["status"].endswith(status)), "")
        if ended or answer["status"].endswith("RUNNING"):
            try:
                ask(client, "kernel_log", {**where, "skip": told}, name, on_event, once=True)
            except KaggleError as user_error:
                if user_error.kind not in PASSING | {"access", "missing", "client"}:
                    raise
        if ended or time.monotonic() > until:
            return KernelOutcome(ended or answer["status"], answer["message"])
        time.sleep(pause)


def share(client: Client, name: str, files: Sequence[Path], note: str, seconds: float) -> None:
    """Put files into the private dataset owner/slug (made, or given a new version) and wait until kernels can read it.

    For wheels and weights that a kernel without internet needs, and for results of an earlier run to go on from.
    """
    _, slug = name.split("/")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in files:
            shutil.copyfile(file, folder / file.name)
        about = {"id": name, "title": slug.replace("-", " "), "licenses": [{"name": "other"}]}
        write_json(folder / "dataset-metadata.json", about)
        ask(client, "dataset", {"folder": str(folder), "ref": name, "note": note, "wait": seconds}, name, once=True)
