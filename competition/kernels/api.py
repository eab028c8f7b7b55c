"""Calls for Kaggle kernels: push, status, log, quota, and datasets for their inputs.

Kernels are private and have the competition as a data source. A push never names a docker image: with a pinned
image, Kaggle runs a TPU push on the CPU (Kaggle/kaggle-cli#1197).
"""

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from competition.config.errors import UserError
from competition.config.params import KernelParams
from competition.files.child_process import Event
from competition.files.manifest import write_json
from competition.kaggle import credentials
from competition.kaggle.answers import decimal, nested, text, utc_time, whole
from competition.kaggle.attempts import poll
from competition.kaggle.client import Client, ask, call, kernel_fields
from competition.kaggle.errors import RETRYABLE, KaggleError
from competition.kernels.packing import notebook

# Requested machine -> the machine on which Kaggle runs it instead.
RETIRED = {"TpuV38": "TpuV5E8", "Tpu1VmV38": "TpuV5E8", "NvidiaTeslaP100": "NvidiaTeslaT4"}
ON_CPU = {"TpuV232", "TpuV2256"}  # accepted by Kaggle, but run on a CPU
ENDED = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")
UNKNOWN = "of unknown status"  # Kaggle's answer has none


@dataclass(frozen=True)
class Kernel:
    """Settings of a kernel. UserError for a machine that Kaggle does not use, or a wrong slug."""

    owner: str
    slug: str  # at least 5 characters; also the title, from which Kaggle derives the slug
    machine_shape: str  # TpuV5E8, NvidiaTeslaT4, ... or "" for a CPU
    internet: bool
    competition: str  # slug, "" = none
    datasets: tuple[str, ...]  # owner/slug
    seconds: int  # limit of the session
    models: tuple[str, ...] = ()  # attached Kaggle models: owner/model/framework/variation/version

    def __post_init__(self) -> None:
        if self.machine_shape in ON_CPU:
            raise UserError(f"Kaggle accepts {self.machine_shape} and runs it on a CPU: use TpuV5E8.")
        if actual := RETIRED.get(self.machine_shape):
            raise UserError(f"{self.machine_shape} is retired and silently runs on {actual}: use {actual}.")
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.slug) or not 5 <= len(self.slug) <= 50:
            raise UserError(f"{self.slug!r} is not a slug of a kernel: expected 5 to 50 of a-z, 0-9 and single dashes.")


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
    """Hours of this week by device (TPU, GPU)."""

    left: Mapping[str, float | None]  # None = Kaggle does not say
    summary: Mapping[str, str]  # e.g. "TPU: 19.0 h left of 20.0"
    refresh: str  # time at which the week ends, ISO 8601, UTC; "" = unknown


def owner_and_slug(client: Client, settings: KernelParams, competition_name: str) -> tuple[str, str]:
    """Name of the competition's kernel. An empty owner is the user of the credential, an empty slug that of the competition."""
    owner = settings.owner or credentials.find_credential(client.environment).username
    owner = owner or str(ask(client, "username", {}, "this account"))
    if not owner:
        raise UserError('Kaggle does not return the user of this credential: name it with SET="kernel.owner=..."')
    slug = settings.slug or re.sub(r"[^a-z0-9]+", "-", f"goldfold-{competition_name}".lower()).strip("-")
    return owner, slug


def status(client: Client, owner: str, slug: str, version: int) -> KernelOutcome:
    """Status of a version of the kernel. version: 0 = the newest."""
    kernel = f"{owner}/{slug}"
    answer = call(client, kernel, "kernels", "GetKernelSessionStatus", once=False, **kernel_fields(kernel, version))
    state = text(answer.get("status")).upper().removeprefix("KERNEL_WORKER_STATUS_")
    return KernelOutcome(state or UNKNOWN, text(answer.get("failureMessage")))


def quota(client: Client) -> Quota:
    """Read this week's quota, which Kaggle returns in seconds, e.g. "3600.5s"."""
    answer = call(client, "the quota", "kernels", "GetAcceleratorQuotaStatistics")
    left, summary = dict[str, float | None](), dict[str, str]()
    for device in ("TPU", "GPU"):
        values = nested(answer.get(f"{device.lower()}Quota"))
        used, allowed = (decimal(text(values.get(name)).removesuffix("s")) for name in ("timeUsed", "totalTimeAllowed"))
        left[device], summary[device] = None, f"{device}: Kaggle does not say how many hours are left"
        if used is not None and allowed is not None:
            hours = left[device] = max(0.0, allowed - used) / 3600
            summary[device] = f"{device}: {hours:.1f} h left of {allowed / 3600:.1f}"
    return Quota(left, summary, utc_time(answer.get("quotaRefreshTime")))


def push(client: Client, kernel: Kernel, source: str, as_notebook: bool = False) -> KernelVersion:
    """Push and start a new version; return Kaggle's own name of the kernel and the version number.  source: Python.

    A rejected data source is an error: Kaggle would run the kernel without it.
    """
    name, machine = f"{kernel.owner}/{kernel.slug}", kernel.machine_shape.lower()
    fields: dict[str, object] = {
        "slug": name,
        "newTitle": kernel.slug.replace("-", " "),
        "language": "python",
        "kernelType": "notebook" if as_notebook else "script",
        "isPrivate": True,
        "enableGpu": machine.startswith("nvidia"),
        "enableTpu": machine.startswith("tpu"),
        "machineShape": kernel.machine_shape,
        "enableInternet": kernel.internet,
        "competitionDataSources": [kernel.competition] if kernel.competition else [],
        "datasetDataSources": list(kernel.datasets),
        "modelDataSources": list(kernel.models),
        "sessionTimeoutSeconds": kernel.seconds or None,
        "text": notebook(source) if as_notebook else source,
    }
    answer = call(client, name, "kernels", "SaveKernel", once=True, **fields)
    if error := answer.get("error"):
        reason = text(error)[:500].rstrip(".") or "it gives no reason"
        raise KaggleError("push", f"Kaggle rejected the kernel {name}: {reason}.")
    for kind in ("competition", "dataset", "kernel", "model"):
        if dropped := answer.get(f"invalid{kind.title()}Sources"):
            names = ", ".join(map(text, dropped)) if isinstance(dropped, list) else text(dropped)
            raise KaggleError(
                "sources",
                f"Kaggle would run {name} without its {kind} sources {names[:500]}: join the competition and accept its "
                "rules, and check the spelling of every source.",
            )
    url = text(answer.get("url"))
    match = re.search(r"(?:^|/)(?:code/)?([^/]+)/([^/]+)/?$", text(answer.get("ref")) or url)
    owner, slug = match.groups() if match else (kernel.owner, kernel.slug)
    return KernelVersion(owner, slug, whole(answer.get("versionNumber")) or 0, url)


def follow(
    client: Client, pushed: KernelVersion, on_log: Callable[[str], None], seconds: float, pause: float
) -> KernelOutcome:
    """Pass the log to `on_log` until the kernel ends, for at most `seconds`. pause: seconds between two requests.

    A failed request for the log is ignored, because only the status decides whether the kernel still runs.
    """
    log_lines, name, until = 0, f"{pushed.owner}/{pushed.slug}", time.monotonic() + seconds

    def on_event(event: Event) -> None:
        nonlocal log_lines
        log_lines = event["count"]
        on_log(event["text"])

    while True:
        outcome = status(client, pushed.owner, pushed.slug, pushed.version)
        try:
            ask(client, "kernel_log", {"kernel": name, "skip": log_lines}, name, on_event, once=True)
        except KaggleError as error:
            # RETRYABLE are temporary failures; the others are Kaggle's answers while there is no log yet.
            if error.kind not in RETRYABLE | {"access", "missing", "absent", "client"}:
                raise
        if outcome.status in ENDED or time.monotonic() > until:
            return outcome
        time.sleep(pause)


def upload_dataset(client: Client, name: str, files: Sequence[Path], note: str, seconds: float) -> None:
    """Upload files to a private dataset, new or as a new version, and wait until kernels can read it.

    Used for results to resume from, and for wheels and weights that a kernel without internet access needs.
    name: owner/slug.  note: description of the version.  seconds: limit of the wait.
    """
    owner, slug = name.split("/")

    def final_status() -> str | None:
        """None while it may still become ready."""
        fields = {"ownerSlug": owner, "datasetSlug": slug}
        answer = call(client, name, "datasets", "GetDatasetStatus", once=True, **fields)
        state = text(answer.get("status")).lower()
        return state if state in {"ready", "error", "failed"} else None

    try:
        call(client, name, "datasets", "GetDatasetStatus", ownerSlug=owner, datasetSlug=slug)
        exists = True
    except KaggleError as error:
        if error.status not in {403, 404}:
            raise
        exists = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in files:
            shutil.copyfile(file, folder / file.name)
        about = {"id": name, "title": slug.replace("-", " "), "licenses": [{"name": "other"}]}
        write_json(folder / "dataset-metadata.json", about)
        ask(client, "save_dataset", {"folder": str(folder), "exists": exists, "note": note}, name, once=True)
    state, problem = poll(final_status, seconds, min(5.0, seconds / 20))
    if state != "ready":
        reason = f"its status is {state}" if state else problem or f"it is not ready after {seconds:.0f} s"
        raise KaggleError("dataset", f"Kaggle rejected the dataset {name}: {reason}.")
