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

from competition.config.errors import UserError
from competition.files.child_process import Event
from competition.files.manifest import write_json, write_text
from competition.kaggle import credentials
from competition.kaggle.client import Client, ask
from competition.kaggle.errors import RETRYABLE, KaggleError
from competition.kernels.packing import notebook

# Requested machine -> the machine on which Kaggle runs it instead.
RETIRED = {"TpuV38": "TpuV5E8", "Tpu1VmV38": "TpuV5E8", "NvidiaTeslaP100": "NvidiaTeslaT4"}
ON_CPU = {"TpuV232", "TpuV2256"}  # accepted by Kaggle, but run on a CPU
ENDED = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")
KNOWN_STATUSES = (*ENDED, "QUEUED", "RUNNING", "CANCEL_REQUESTED", "NEW_SCRIPT")
UNKNOWN = "of unknown status"  # Kaggle's answer has none
LONGEST_UNKNOWN = 600.0  # seconds after which a kernel whose status stays unknown counts as ended


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
    models: tuple[str, ...] = ()  # attached Kaggle models: owner/model/framework/variation/version


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
    """Hours used and allowed in this week; None = Kaggle does not say."""

    gpu_used: float | None
    gpu_allowed: float | None
    tpu_used: float | None
    tpu_allowed: float | None
    refresh: str  # time at which the week ends, ISO 8601, UTC; "" = unknown

    def left(self, device: str) -> float | None:
        """Hours that are left on a device (TPU or GPU)."""
        used, allowed = getattr(self, f"{device.lower()}_used"), getattr(self, f"{device.lower()}_allowed")
        return None if used is None or allowed is None else max(0.0, allowed - used)

    def summary(self, device: str) -> str:
        """E.g. "TPU: 19.0 h left of 20.0"."""
        left, allowed = self.left(device), getattr(self, f"{device.lower()}_allowed")
        if left is None:
            of = "" if allowed is None else f" of {allowed:.1f} h"
            return f"{device}: Kaggle does not say how many hours{of} are left"
        return f"{device}: {left:.1f} h left of {allowed:.1f}"


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
    kernel = f"{owner}/{slug}"
    answer = ask(client, "kernel_status", {"kernel": kernel, "version": version}, kernel)
    state = answer["status"].upper().removeprefix("KERNEL_WORKER_STATUS_")
    return KernelOutcome(state or UNKNOWN, answer["message"])


def quota(client: Client) -> Quota:
    """Read this week's quota, which Kaggle returns in seconds."""
    answer = ask(client, "quota", {}, "the quota")
    refresh = str(answer.pop("refresh"))
    return Quota(**{name: None if each is None else each / 3600 for name, each in answer.items()}, refresh=refresh)


def metadata(kernel: Kernel, code_file: str) -> dict[str, object]:
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
        "model_sources": list(kernel.models),
    }


def write_folder(kernel: Kernel, text: str, folder: Path, as_notebook: bool) -> None:
    """Write the input of `kaggle kernels push -p FOLDER`: metadata and one code file.  text: Python source."""
    code_file = f"{kernel.slug}.ipynb" if as_notebook else f"{kernel.slug}.py"
    write_json(folder / "kernel-metadata.json", metadata(kernel, code_file))
    write_text(folder / code_file, notebook(text) if as_notebook else text)


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
    client: Client,
    pushed: KernelVersion,
    on_log: Callable[[str], None],
    seconds: float,
    pause: float,
    longest_unknown: float = LONGEST_UNKNOWN,
) -> KernelOutcome:
    """Pass the log to `on_log` until the kernel ends, for at most `seconds`. pause: seconds between two requests.

    A status that is not known here, such as PREEMPTED, is returned if it lasts for `longest_unknown` seconds.

    A failed request for the log is ignored, because only the status decides whether the kernel still runs.
    """
    log_lines = 0
    name, until = f"{pushed.owner}/{pushed.slug}", time.monotonic() + seconds
    unknown, unknown_since = "", 0.0  # the last status that is not known here, and when it appeared

    def on_event(event: Event) -> None:
        nonlocal log_lines
        if event["event"] == "log":
            log_lines = event["count"]
            on_log(event["text"])

    while True:
        outcome = status(client, pushed.owner, pushed.slug, pushed.version)
        if outcome.status in KNOWN_STATUSES:
            unknown = ""
        elif outcome.status != unknown:
            unknown, unknown_since = outcome.status, time.monotonic()
            client.print_line(f"kernel: Kaggle's status {unknown} is not known here; waiting for another one")
        if outcome.status in (*ENDED, "RUNNING") or unknown:
            try:
                ask(client, "kernel_log", {"kernel": name, "skip": log_lines}, name, on_event, once=True)
            except KaggleError as error:
                # RETRYABLE are temporary failures; the others are Kaggle's answers while there is no log yet.
                if error.kind not in RETRYABLE | {"access", "missing", "absent", "client"}:
                    raise
        if outcome.status in ENDED or time.monotonic() > until:
            return outcome
        if unknown and time.monotonic() - unknown_since > longest_unknown:
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
