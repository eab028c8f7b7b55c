"""The same work on Kaggle's machines: pack the project into one file, push it, follow it, bring the results home.

A kernel is private, takes the competition as a source, and leaves results with checksums; what comes back is merged
piece by piece as if it had been made here. Metadata is made anew every time and never names a docker_image: a pinned
image makes Kaggle run a TPU push on the CPU (Kaggle/kaggle-cli#1197).
"""

import base64
import fnmatch
import hashlib
import io
import json
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from competition.errors import Refusal
from competition.manifest import atomic, is_whole, read_manifest, sha256, write_json
from competition.remote import archive, kernel_script
from competition.remote.kaggle_client import PASSING, Client, KaggleRefusal, ask

LARGEST = 1_000_000  # characters of source that Kaggle takes in one kernel
RETIRED = {"TpuV38": "TpuV5E8", "Tpu1VmV38": "TpuV5E8", "NvidiaTeslaP100": "NvidiaTeslaT4"}  # accepted, run elsewhere
ON_CPU = {"TpuV232", "TpuV2256"}  # accepted, run on a CPU
ENDED = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")


@dataclass(frozen=True)
class Plan:
    """What the kernel does. commands: arguments of `python`, run in the project's root; "{input:NAME}" in one becomes
    the folder among the inputs that holds NAME."""

    run: str  # names this run, in the kernel's output too
    commands: tuple[tuple[str, ...], ...]
    collect: tuple[str, ...]  # patterns of result folders, relative to the project's root
    needs: Mapping[str, str]  # module -> requirement, installed when absent
    environment: Mapping[str, str]  # added for the commands
    accelerator: str  # "tpu", "gpu", or "" = whatever is there
    devices: int  # at least so many of them
    seconds: int  # of Kaggle's session limit
    grace: int  # of them, kept for stopping and packing


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
class Pushed:
    owner: str
    slug: str
    version: int
    url: str


@dataclass(frozen=True)
class Ended:
    status: str  # COMPLETE, ERROR, CANCEL_ACKNOWLEDGED, or the last one seen when time was over
    message: str


@dataclass(frozen=True)
class Output:
    """What a kernel left, verified."""

    folder: Path
    status: str  # done, cut (time was over; run it again to go on), failed
    problem: str
    devices: str
    seconds: float
    units: tuple[str, ...]


@dataclass(frozen=True)
class Merged:
    taken: tuple[str, ...]  # whole results that are here now
    partial: tuple[str, ...]  # unfinished ones (checkpoints) that are here now
    kept: tuple[str, ...]  # what was here already, and whole


@dataclass(frozen=True)
class Quota:
    """Hours of the week."""

    gpu_used: float
    gpu_allowed: float
    tpu_used: float
    tpu_allowed: float
    refresh: str


def quota(client: Client) -> Quota:
    told = ask(client, "quota", {}, "the quota")
    none = {"used": 0.0, "allowed": 0.0}
    gpu, tpu = told.get("gpu", none), told.get("tpu", none)
    used, allowed = ((gpu[what] / 3600, tpu[what] / 3600) for what in ("used", "allowed"))
    return Quota(used[0], allowed[0], used[1], allowed[1], str(told["refresh"]))


def project_files(root: Path, patterns: Sequence[str]) -> dict[str, bytes]:
    """The files of the project that travel, by name. patterns: as of Path.glob, e.g. "competition/**/*.py"."""
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    if not paths:
        raise Refusal(f"{root} holds nothing that matches {', '.join(patterns)}: run this from the project's folder.")
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(paths)}


def pack(files: Mapping[str, bytes], plan: Plan) -> str:
    """The kernel's one code file: kernel_script.py with the plan and the files inside."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as writer:
        for name, data in files.items():
            writer.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    data = zipped.getvalue()
    told = {**asdict(plan), "project": hashlib.sha256(data).hexdigest()}
    coded = re.sub("(.{100})", r'\1"\n    "', base64.b64encode(data).decode())
    text = Path(kernel_script.__file__).read_text(encoding="utf-8")
    text = _replace(text, "PLAN: dict[str, Any] = {}", f"PLAN: dict[str, Any] = json.loads({json.dumps(told)!r})")
    text = _replace(text, 'PROJECT = ""', f'PROJECT = (\n    "{coded}"\n)')
    if len(text) > LARGEST:
        raise Refusal(
            f"the packed project is {len(text):,} characters, Kaggle takes {LARGEST:,}: leave large files out, and "
            "attach them as a dataset."
        )
    return text


def notebook(text: str) -> str:
    """The packed file as an .ipynb for a person who prefers the browser."""
    import jupytext

    cells = jupytext.reads(text, fmt="py:percent")
    cells.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return str(jupytext.writes(cells, fmt="ipynb"))


def metadata(kernel: Kernel, code_file: str) -> dict[str, Any]:
    """kernel-metadata.json. Refusal for a machine that Kaggle takes but does not run on."""
    if kernel.machine_shape in ON_CPU:
        raise Refusal(f"Kaggle accepts {kernel.machine_shape} and runs it on a CPU: use TpuV5E8.")
    if kernel.machine_shape in RETIRED:
        better = RETIRED[kernel.machine_shape]
        raise Refusal(f"{kernel.machine_shape} is retired and silently runs on {better}: say {better}.")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kernel.slug) or not 5 <= len(kernel.slug) <= 50:
        raise Refusal(f"{kernel.slug!r} is no slug of a kernel: expected 5 to 50 of a-z, 0-9 and single dashes.")
    for name in kernel.datasets:
        if not re.fullmatch(r"[^/\s]+/[^/\s]+", name):
            raise Refusal(f"{name!r} is no dataset: expected owner/slug.")
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
    with atomic(folder / code_file) as temporary:
        temporary.write_text(notebook(text) if as_notebook else text, encoding="utf-8")
    write_json(folder / "kernel-metadata.json", about)


def push(client: Client, kernel: Kernel, text: str) -> Pushed:
    """Push and start a new version. Kaggle's own name of the kernel and the version come back."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(kernel, text, Path(folder), as_notebook=False)
        arguments = {"folder": folder, "seconds": kernel.seconds, "accelerator": kernel.machine_shape}
        answer = ask(client, "push", arguments, f"{kernel.owner}/{kernel.slug}", once=True)
    found = re.search(r"(?:^|/)(?:code/)?([^/]+)/([^/]+)/?$", answer["ref"] or answer["url"])
    owner, slug = found.groups() if found else (kernel.owner, kernel.slug)
    return Pushed(owner, slug, int(answer["version"]), answer["url"])


def follow(
    client: Client, pushed: Pushed, on_log: Callable[[str], None], seconds: float, pause: float, told: int = 0
) -> Ended:
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
            except KaggleRefusal as refusal:
                if refusal.kind not in PASSING | {"access", "missing", "client"}:
                    raise
        if ended or time.monotonic() > until:
            return Ended(ended or answer["status"], answer["message"])
        time.sleep(pause)


def pull(client: Client, pushed: Pushed, run: str, folder: Path) -> Output:
    """The outputs of this very run into `folder`, which they replace as a whole, every checksum verified."""
    name = f"{pushed.owner}/{pushed.slug}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder.parent) as temporary:
        came = Path(temporary) / "output"
        came.mkdir()
        where = {"owner": pushed.owner, "slug": pushed.slug, "version": pushed.version, "folder": str(came)}
        ask(client, "kernel_output", where, name)
        output = read_output(came, run, name)
        shutil.rmtree(folder, ignore_errors=True)
        came.replace(folder)
    return Output(folder, output.status, output.problem, output.devices, output.seconds, output.units)


def read_output(folder: Path, run: str, name: str) -> Output:
    """What a pulled (or hand-downloaded) output folder holds; Refusal when it is of another run, or not whole."""
    listing = folder / kernel_script.OUTPUT
    try:
        told = json.loads(listing.read_text(encoding="utf-8"))
        units = {unit["unit"]: (unit["file"], unit["sha256"]) for unit in told["units"]}
        output = Output(
            folder, told["status"], told["problem"], told["devices"], float(told["seconds"]), tuple(sorted(units))
        )
        other = told["run"] if run and told["run"] != run else ""
    except FileNotFoundError as error:
        raise Refusal(f"{name} left no {kernel_script.OUTPUT}: it ended before it could pack; read its log.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"{listing} of {name} is damaged: pull it again.") from error
    if other:
        raise Refusal(
            f"the output of {name} is of run {other}, not of {run}: an older version; wait, then pull it again."
        )
    for unit, (file, digest) in units.items():
        path = folder / PurePosixPath(file).name
        if not path.is_file() or sha256(path) != digest:
            raise Refusal(f"{unit} in the output of {name} is missing or damaged: pull it again.")
    return output


def merge(output: Output, into: Path, allowed: Sequence[str], max_ratio: float) -> Merged:
    """Put each result folder where it would be had it been made here.

    allowed: patterns of the folders that may come, relative to `into` (the plan's `collect`).
    A result that is whole here already stays; one that came without its manifest (a checkpoint) never replaces one.
    """
    told = json.loads((output.folder / kernel_script.OUTPUT).read_text(encoding="utf-8"))
    taken: list[str] = []
    partial: list[str] = []
    kept: list[str] = []
    for unit in told["units"]:
        name = str(unit["unit"])
        if ".." in PurePosixPath(name).parts or not any(_matches(name, pattern) for pattern in allowed):
            raise Refusal(f"the output holds {name!r}, which was not asked for: expected {', '.join(allowed)}.")
        target = into / name
        here = read_manifest(target / "manifest.json")
        if here is not None and is_whole(target / "manifest.json", here):
            kept.append(name)
            continue
        came = target.with_name(f".{target.name}.merging")
        shutil.rmtree(came, ignore_errors=True)
        archive.extract(output.folder / unit["file"], came, max_ratio)
        made = read_manifest(came / "manifest.json")
        if made is not None and not is_whole(came / "manifest.json", made):
            shutil.rmtree(came)
            raise Refusal(f"{name} from the kernel is not what its manifest says: train it again.")
        shutil.rmtree(target, ignore_errors=True)
        came.replace(target)
        (taken if made is not None else partial).append(name)
    return Merged(tuple(taken), tuple(partial), tuple(kept))


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


def carry(root: Path, patterns: Sequence[str], folder: Path) -> list[Path]:
    """Pack results from here for a kernel to go on from (`share` them): the files, the list of them last."""
    folder.mkdir(parents=True, exist_ok=True)
    units = kernel_script.collect(root, list(patterns), folder)
    told = {"run": "carried", "status": "done", "problem": "", "devices": "", "seconds": 0, "units": units}
    write_json(folder / kernel_script.OUTPUT, told)
    return [*(folder / unit["file"] for unit in units), folder / kernel_script.OUTPUT]


def _matches(name: str, pattern: str) -> bool:
    """As Path.glob would: a star does not reach over a slash."""
    return name.count("/") == pattern.count("/") and fnmatch.fnmatch(name, pattern)


def _replace(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise AssertionError(f"{old!r} stands {text.count(old)} times in the template")
    return text.replace(old, new)
