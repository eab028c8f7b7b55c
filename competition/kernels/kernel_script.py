# %% [markdown]
# # goldfold on Kaggle
# This file contains the project. Attach the competition (Add Input), choose the accelerator, run all cells.
# The results appear as `*.pack` files with `goldfold-output.json`, which lists them with their checksums.

# %%
"""Script that runs in a Kaggle kernel: unpack the project, check the machine, run the commands, pack the results.

This file is a template: packing.pack() replaces PLAN and PROJECT by the plan and the packed project. It uses the
standard library and `packaging`; the packages that the commands need are installed before they start. The cell markers make it a
notebook as well.
"""

import base64
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import lzma
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

OUTPUT = "goldfold-output.json"  # written last: the results that it lists are complete
PLAN: dict[str, Any] = {}  # filled in by packing.pack
PROJECT = ""  # base85 of an xz-compressed zip, filled in by packing.pack


# %%
def main(working: Path, inputs: Path) -> int:
    """Run the plan; return the exit code. Whatever fails, the finished results are packed and listed.

    working: folder of the kernel's outputs (Kaggle's current folder).  inputs: folder of the attached data.
    """
    started = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="goldfold-"))
    problem, devices, status = "", "", "done"
    try:
        data = base64.b85decode(PROJECT)
        if hashlib.sha256(data).hexdigest() != PLAN["project"]:
            raise RuntimeError("the project in this file is damaged: push the kernel again")
        unzip(io.BytesIO(lzma.decompress(data)), root)
        restored = restore(inputs, root)
        print(f"goldfold: run {PLAN['run']}, Python {platform.python_version()}, {len(restored)} earlier results")
        install(PLAN["needs"], inputs)
        devices = open_devices(PLAN["accelerator"], PLAN["devices"], PLAN["jax"], inputs, root)
        print(f"goldfold: devices: {devices}", flush=True)
        for command in PLAN["commands"]:
            remaining = PLAN["seconds"] - PLAN["grace"] - (time.monotonic() - started)
            status, code = run(resolve_inputs(command, inputs), root, remaining)
            if status != "done":
                problem = f"{' '.join(command)}: {status}, exit code {code}"
                break
    except Exception as error:
        if not isinstance(error, RuntimeError):
            traceback.print_exc()
        status, problem = "failed", str(error) or repr(error)
    archives, not_packed = collect(root, PLAN["collect"], working)
    for name, pattern in PLAN["copy_out"].items() if status != "failed" and not not_packed else ():
        paths = list(root.glob(pattern))
        if status == "cut" and not paths:
            continue
        try:
            if len(paths) == 1:
                write_atomically(working / name, paths[0].read_bytes())
            else:
                not_packed = f"{name}: expected one file {pattern}, found {len(paths)}"
        except OSError as error:
            not_packed = f"{name} could not be written: {error.strerror}"
    if not_packed:
        status, problem = "failed", "; ".join(filter(None, (problem, not_packed)))
    manifest = {
        "run": PLAN["run"],
        "status": status,
        "problem": problem,
        "devices": devices,
        "archives": archives,
        "seconds": round(time.monotonic() - started, 1),
    }
    write_atomically(working / OUTPUT, json.dumps(manifest, indent=1).encode())
    print(f"goldfold: {status}, {len(archives)} results in {manifest['seconds']} s. {problem}", flush=True)
    return 1 if status == "failed" else 0


def unzip(source: Path | io.BytesIO, folder: Path) -> None:
    """Unpack a zip of this project, whose checksum was verified; RuntimeError if a name leaves the folder."""
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
    """Install the packages that are missing or too old. needs: module -> requirement.

    RuntimeError if one cannot be imported. One that stays too old is used, with a warning: a session without internet access
    has no other.
    """
    missing = [module for module in needs if not importable(module)]
    if missing and not pip_install([needs[module] for module in missing], inputs):
        raise RuntimeError(
            f"{', '.join(missing)} cannot be imported and could not be installed: enable the kernel's internet access, "
            "or attach a dataset with their wheels"
        )
    from packaging.requirements import Requirement  # Keras and TensorFlow need it, too

    distributions, versions = importlib.metadata.packages_distributions(), {}
    for module in needs:  # its packages in the image, as requirements: ["pillow==12.1.1"]
        names = sorted(set(distributions.get(module.split(".")[0], [])))
        versions[module] = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    accepted = {module: Requirement(requirement).specifier for module, requirement in needs.items()}
    too_old = [
        module
        for module, packages in versions.items()
        if packages
        and not any(accepted[module].contains(package.split("==")[1], prereleases=True) for package in packages)
    ]
    # The image's TensorFlow fits its accelerator: it stays, and pip replaces nothing by what it does not run with.
    replaceable = [needs[module] for module in too_old if module != "tensorflow"]
    pinned = versions.get("tensorflow", [])[:1]
    if replaceable and pip_install([*replaceable, *pinned], inputs):
        too_old = [module for module in too_old if module == "tensorflow"]
    for module in too_old:
        expected = needs[module].split(";")[0]
        installed = ", ".join(versions[module]).replace("==", " ")
        print(f"goldfold: WARNING the image's {installed} is used, expected {expected}", flush=True)
    if broken := [module for module in too_old if not importable(module)]:
        raise RuntimeError(f"{', '.join(broken)} cannot be imported after a failed installation: run the kernel again")


def pip_install(requirements: list[str], inputs: Path) -> bool:
    """Install from wheels among the inputs, else from the package index. requirements: with options of pip."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wheels = sorted({f"--find-links={path.parent}" for path in inputs.rglob("*.whl")})
    for source in [["--no-index", *wheels], []] if wheels else [[]]:
        try:
            if subprocess.run([*pip, *source, *requirements], check=False, timeout=PIP_SECONDS).returncode == 0:
                importlib.invalidate_caches()
                return True
        except subprocess.TimeoutExpired:
            print(f"goldfold: pip did not end in {PIP_SECONDS} s", flush=True)
    return False


def importable(module: str) -> bool:
    """Return True if the module is found; a hidden or broken package counts as missing."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


# Runs in a process of its own, because a wrong pair of jax and libtpu ends it: prints the versions, then what it computes on.
JAX_TRIAL = """
import importlib.metadata, json
names = {each.metadata["Name"] for each in importlib.metadata.distributions()} & {"jax", "jaxlib", "libtpu"}
print("goldfold", json.dumps({name: importlib.metadata.version(name) for name in names}), flush=True)
import jax
step = jax.jit(jax.value_and_grad(lambda x: (x @ x).sum()))
value, gradient = step(jax.numpy.ones((128, 128)))
assert float(value) == 128 ** 3, value
print("goldfold", json.dumps([jax.default_backend(), jax.device_count()]))
"""
GPU_TRIAL = """
import json, tensorflow as tf
print("goldfold {}")
print("goldfold", json.dumps(["gpu", len(tf.config.list_physical_devices("GPU"))]))
"""
TRIAL_SECONDS = 600
PIP_SECONDS = 1200


def open_devices(accelerator: str, at_least: int, pair: dict[str, str], inputs: Path, root: Path) -> str:
    """Return the backend and number of devices; RuntimeError if there are too few.

    Kaggle silently runs a TPU push on a CPU image if the metadata are wrong.
    pair: versions of jax, jaxlib and libtpu that preflight verified; {} = those of the image.
    """
    if accelerator == "tpu":
        devices, problem = open_tpu(at_least, pair, inputs, root)
    elif accelerator == "gpu":
        _, devices, problem = try_devices(GPU_TRIAL, "gpu", at_least)
    else:
        return f"cpu {os.cpu_count()}"
    if problem:
        raise RuntimeError(
            f"expected {at_least} {accelerator} devices, found: {problem}; choose the accelerator in the kernel's settings, "
            "and leave docker_image out of its metadata"
        )
    return devices


def open_tpu(at_least: int, pair: dict[str, str], inputs: Path, root: Path) -> tuple[str, str]:
    """Test the image's jax on its TPU. If that fails, or is another pair than the verified one, install and use that one.

    The image forces a libtpu that fits torch; its jax may be too new for it.  Returns (devices, problem or "").
    """
    versions, devices, problem = try_devices(JAX_TRIAL, "tpu", at_least)
    has_tpu = bool(os.environ.get("ISTPUVM")) or any(Path(path).exists() for path in ("/dev/accel0", "/dev/vfio/0"))
    if not has_tpu or not pair or (not problem and versions == pair):
        return devices, problem
    image, verified = (", ".join(f"{name} {one[name]}" for name in sorted(one)) or "jax" for one in (versions, pair))
    print(f"goldfold: the image's {image}: {problem or 'not what preflight compiled with'}", flush=True)
    print(f"goldfold: installing {verified}", flush=True)
    folder, previous = root / "jax", os.environ.get("PYTHONPATH", "")
    # Without dependencies: the image's numpy and ml_dtypes stay, which its TensorFlow needs.
    pinned = [f"{name}=={version}" for name, version in pair.items()]
    verified_problem = "it could not be installed: enable internet access, or attach a dataset with its wheels"
    if pip_install(["--no-deps", "--upgrade", f"--target={folder}", *pinned], inputs):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), previous)))
        versions, verified_devices, verified_problem = try_devices(JAX_TRIAL, "tpu", at_least)
        if not verified_problem and versions == pair:
            return verified_devices, ""
        os.environ["PYTHONPATH"] = previous
    if problem:
        return "", f"{problem}; with {verified}: {verified_problem}"
    print(f"goldfold: WARNING the image's jax is used, which preflight did not verify: {verified_problem}", flush=True)
    return devices, ""


def try_devices(trial: str, kind: str, at_least: int) -> tuple[dict[str, str], str, str]:
    """(versions, "tpu 8", "") that a new process finds by a trial; with the problem in place of "" if it fails."""
    try:
        command = [sys.executable, "-c", trial]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        return {}, "", f"no answer in {TRIAL_SECONDS} s"
    lines = [json.loads(line[9:]) for line in process.stdout.splitlines() if line.startswith("goldfold ")]
    versions = lines[0] if lines else {}
    if process.returncode or len(lines) != 2:
        last_line = (process.stderr.strip().splitlines() or ["no answer"])[-1]
        return versions, "", f"exit code {process.returncode}, {last_line}"
    backend, count = lines[1]
    return versions, f"{backend} {count}", "" if backend == kind and count >= at_least else f"{backend} {count}"


def resolve_inputs(command: list[str], inputs: Path) -> list[str]:
    """Replace {input:NAME} by the folder among the inputs that holds NAME. Kaggle changes the mount points."""

    def folder_of(match: re.Match[str]) -> str:
        paths = sorted(inputs.rglob(match[1]), key=lambda path: (len(path.parts), str(path)))
        if not paths:
            raise RuntimeError(f"no input holds {match[1]}: attach the competition or dataset to the kernel")
        return str(paths[0].parent)

    return [re.sub(r"\{input:([^}]+)\}", folder_of, argument) for argument in command]


def run(command: list[str], root: Path, seconds: float) -> tuple[str, int]:
    """Run `python` with the arguments `command` for at most `seconds`: (status, exit code).

    status: "done"; "failed" (exit code above 0); "cut" (stopped with SIGTERM before Kaggle's own limit; its
    checkpoints are kept, and another kernel can resume).
    """
    if seconds <= 0:
        return "cut", 0
    print(f"goldfold: {' '.join(command)}", flush=True)
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen([sys.executable, "-u", *command], cwd=root, env={**os.environ, "PYTHONPATH": path})
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
def collect(root: Path, patterns: list[str], working: Path) -> tuple[list[dict[str, Any]], str]:
    """Pack every folder that matches; return the archives, see `write_archive`, and what could not be packed, or "".

    patterns: of Path.glob.  Complete results come first, because the outputs may be too small for all.
    """
    archives, problems = [], []
    folders = {path for pattern in patterns for path in root.glob(pattern) if path.is_dir()}
    for folder in sorted(folders, key=lambda path: (not (path / "manifest.json").exists(), path)):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".lock")]
        if files:
            result_folder = folder.relative_to(root).as_posix()
            try:
                archives.append(write_archive(result_folder, folder, files, working))
            except OSError as error:  # Kaggle limits the size of the outputs; a smaller folder may still fit
                problems.append(f"{result_folder} could not be packed: {error.strerror}")
    return archives, "; ".join(problems)


def write_archive(result_folder: str, folder: Path, files: list[Path], working: Path) -> dict[str, Any]:
    """Write the files of a result folder to NAME-DIGEST.pack; return the result folder, file name and digest.

    result_folder: path of the folder, relative to the project's root.  The archive is a zip; Kaggle would unpack a file called .zip.
    """
    # The digest is of the path: a/b and a-b have the same readable name.
    name = result_folder.replace("/", "-").strip(".") or "project-root"
    file = f"{name}-{hashlib.sha256(result_folder.encode()).hexdigest()[:8]}.pack"
    temporary = working / f".{file}.part"
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as zipped:
            for path in files:
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                entry.file_size = path.stat().st_size  # decides whether the entry uses ZIP64
                with path.open("rb") as source, zipped.open(entry, "w") as packed:
                    shutil.copyfileobj(source, packed)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    about = {"result_folder": result_folder, "file": file, "sha256": digest(temporary)}
    temporary.replace(working / file)
    return about


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def restore(inputs: Path, root: Path) -> list[str]:
    """Unpack the results of earlier runs from the inputs; return their folders. A damaged archive is skipped."""
    restored = []
    for listing in sorted(inputs.rglob(OUTPUT)):
        try:
            entries = json.loads(listing.read_text())["archives"]
            archives = [(entry["result_folder"], entry["file"], entry["sha256"]) for entry in entries]
        except (ValueError, KeyError, TypeError):
            print(f"goldfold: {listing} is damaged; it is skipped")
            continue
        for result_folder, file, sha256 in archives:
            archive, parts = listing.parent / file, PurePosixPath(result_folder).parts
            if {"..", "/"} & set(parts) or not archive.is_file() or digest(archive) != sha256:
                print(f"goldfold: {result_folder} from {listing} is damaged; it is skipped")
                continue
            unzip(archive, root.joinpath(*parts))
            restored.append(result_folder)
    return restored


def write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(data)
    temporary.replace(path)


# %%
if __name__ == "__main__":
    # In a notebook exit(0) raises SystemExit too, and Kaggle would count the version as failed.
    if code := main(Path.cwd(), Path.cwd().parent / "input"):
        sys.exit(code)
