# %% [markdown]
# # goldfold on Kaggle
# The project travels inside this file. Attach the competition (Add Input), choose the accelerator, run all cells.
# The results appear as `*.pack` files with `goldfold-output.json`, which lists them with their checksums.

# %%
"""What runs inside a Kaggle kernel: unpack the project, check the machine, run the commands, pack the results.

This file is also the template: packing.pack() puts the plan and the project in place of PLAN and PROJECT. It needs the
standard library only, and what the commands need is looked for before they start. Its cells make a notebook as well.
"""

import base64
import hashlib
import importlib.util
import io
import json
import lzma
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

OUTPUT = "goldfold-output.json"  # written last: what it lists is whole
PLAN: dict[str, Any] = {}  # filled in by packing.pack
PROJECT = ""  # base85 of an xz-compressed zip, filled in by packing.pack


# %%
def main(working: Path, inputs: Path) -> int:
    """working: where Kaggle keeps outputs (its current folder).  inputs: where it mounts what is attached."""
    started = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="goldfold-"))
    unpack_project(root)
    problem, code, devices, status = "", 0, "", "done"
    try:
        carried = restore(inputs, root)
        print(
            f"goldfold: run {PLAN['run']}, Python {platform.python_version()}, {len(carried)} results of earlier runs"
        )
        install(PLAN["needs"], inputs)
        devices = check_devices(PLAN["accelerator"], PLAN["devices"])
        print(f"goldfold: devices: {devices}", flush=True)
        for command in PLAN["commands"]:
            left = PLAN["seconds"] - PLAN["grace"] - (time.monotonic() - started)
            status, code = run(fill(command, inputs), root, left)
            if status != "done":
                problem = f"{' '.join(command)}: {status}, exit code {code}"
                break
    except RuntimeError as error:
        status, code, problem = "failed", 1, str(error)
    units = collect(root, PLAN["collect"], working)
    if status == "done":
        leave(root, PLAN["leave"], working)
    told = {
        "run": PLAN["run"],
        "status": status,
        "code": code,
        "problem": problem,
        "devices": devices,
        "units": units,
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - started, 1),
    }
    write_whole(working / OUTPUT, json.dumps(told, indent=1).encode())
    print(f"goldfold: {status}, {len(units)} results in {told['seconds']} s. {problem}", flush=True)
    return 1 if status == "failed" else 0


def unpack_project(root: Path) -> None:
    data = base64.b85decode(PROJECT)
    if hashlib.sha256(data).hexdigest() != PLAN["project"]:
        raise SystemExit("goldfold: the project in this file is damaged: push the kernel again")
    unzip(io.BytesIO(lzma.decompress(data)), root)


def unzip(source: Path | io.BytesIO, folder: Path) -> None:
    """Of zips made by this project, whose checksum was right; still nothing may leave the folder."""
    with zipfile.ZipFile(source) as zipped:
        for name in zipped.namelist():
            parts = PurePosixPath(name).parts
            if ".." in parts or name.startswith("/"):
                raise RuntimeError(f"{name!r} leaves the folder it is unpacked in")
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipped.open(name) as packed, path.open("wb") as file:
                shutil.copyfileobj(packed, file)


def install(needs: dict[str, str], inputs: Path) -> None:
    """Modules that are not here (module -> requirement): from wheels among the inputs, else from the package index."""
    absent = {module: requirement for module, requirement in needs.items() if not importable(module)}
    if not absent:
        return
    wheels = sorted({str(path.parent) for path in inputs.rglob("*.whl")})
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if wheels:
        folders = [part for folder in wheels for part in ("--find-links", folder)]
        subprocess.run([*pip, "--no-index", *folders, *absent.values()], check=False)
    importlib.invalidate_caches()
    absent = {module: requirement for module, requirement in absent.items() if not importable(module)}
    if absent and subprocess.run([*pip, *absent.values()], check=False).returncode:
        raise RuntimeError(
            f"{', '.join(absent)} cannot be imported here and could not be installed: switch the kernel's internet on, "
            "or attach a dataset with their wheels"
        )


def importable(module: str) -> bool:
    """In the interpreter that will run the commands, where packages may be hidden or broken."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def check_devices(accelerator: str, at_least: int) -> str:
    """Kaggle runs a TPU push on a CPU image without a word when something in the metadata is wrong: so ask."""
    code = {
        "tpu": "import jax; print(jax.default_backend(), jax.device_count())",
        "gpu": "import tensorflow as tf; print('gpu', len(tf.config.list_physical_devices('GPU')))",
    }.get(accelerator)
    if code is None:
        return f"cpu {os.cpu_count()}"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    words = asked.stdout.split()[-2:]
    if asked.returncode or len(words) != 2 or words[0] != accelerator or int(words[1]) < at_least:
        found = " ".join(words) or (asked.stderr.strip().splitlines() or ["no answer"])[-1]
        raise RuntimeError(
            f"expected {at_least} {accelerator} devices, found: {found}; choose the accelerator in the kernel's "
            "settings, and leave docker_image out of its metadata"
        )
    return " ".join(words)


def fill(command: list[str], inputs: Path) -> list[str]:
    """{input:NAME} in a command becomes the folder that holds NAME, wherever Kaggle mounts it this year."""
    filled = []
    for word in command:
        before, mark, rest = word.partition("{input:")
        if mark:
            name, _, after = rest.partition("}")
            found = sorted(inputs.rglob(name), key=lambda path: (len(path.parts), str(path)))
            if not found:
                raise RuntimeError(f"no input holds {name}: attach the competition or dataset to the kernel")
            word = f"{before}{found[0].parent}{after}"
        filled.append(word)
    return filled


def run(command: list[str], root: Path, seconds: float) -> tuple[str, int]:
    """("done" | "failed" | "cut", exit code). Cut: asked to stop (SIGTERM) before Kaggle's own limit would kill it."""
    if seconds <= 0:
        return "cut", 0
    print(f"goldfold: {' '.join(command)}", flush=True)
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, **PLAN["environment"]}
    process = subprocess.Popen([sys.executable, "-u", *command], cwd=root, env=environment)
    try:
        code = process.wait(seconds)
        return ("failed" if code else "done"), code
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    try:
        return "cut", process.wait(PLAN["grace"] / 2)
    except subprocess.TimeoutExpired:
        process.kill()
        return "cut", process.wait()


# %%
def collect(root: Path, patterns: list[str], working: Path) -> list[dict[str, Any]]:
    """Every folder that matches becomes a pack in `working`, listed."""
    units = []
    for folder in sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_dir()}):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".lock")]
        if files:
            units.append(pack(folder.relative_to(root).as_posix(), folder, files, working))
    return units


def pack(unit: str, folder: Path, files: list[Path], working: Path) -> dict[str, Any]:
    """Files of a folder as NAME.pack (a zip; Kaggle would unpack one called .zip). unit: where they belong, from the
    project's root."""
    file = (unit.replace("/", "-").strip(".") or "project-root") + ".pack"
    temporary = working / f".{file}.part"
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as zipped:
        for path in files:
            name = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            name.file_size = path.stat().st_size  # says whether the large form of the entry is needed
            with path.open("rb") as source, zipped.open(name, "w") as packed:
                shutil.copyfileobj(source, packed)
    told = {"unit": unit, "file": file, "sha256": digest(temporary), "bytes": temporary.stat().st_size}
    temporary.replace(working / file)
    return told


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def leave(root: Path, files: dict[str, str], working: Path) -> None:
    """name -> pattern: the one file that matches stays among the outputs as it is."""
    for name, pattern in files.items():
        (found,) = root.glob(pattern)
        write_whole(working / name, found.read_bytes())


def restore(inputs: Path, root: Path) -> list[str]:
    """Results of earlier runs among the inputs go where they came from; a damaged one is left out and made again."""
    restored = []
    for listing in sorted(inputs.rglob(OUTPUT)):
        for unit in json.loads(listing.read_text())["units"]:
            pack, parts = listing.parent / unit["file"], PurePosixPath(unit["unit"]).parts
            if {"..", "/"} & set(parts) or not pack.is_file() or digest(pack) != unit["sha256"]:
                print(f"goldfold: {unit['unit']} from {listing} is damaged; it is left out")
                continue
            unzip(pack, root.joinpath(*parts))
            restored.append(unit["unit"])
    return restored


def write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(data)
    temporary.replace(path)


# %%
if __name__ == "__main__":
    # In a notebook even exit(0) is an exception, and the version would count as failed.
    if code := main(Path.cwd(), Path.cwd().parent / "input"):
        sys.exit(code)
