"""Where the data is, for the machine this runs on: decided from what is there, said with its reason, and tried.

`decide` is pure: the environment and a way to ask whether a path exists come in as arguments. Nothing here imports
TensorFlow until a gs:// path is really read.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from competition.config.errors import UserError

Machine = Literal[
    "local", "kaggle", "kaggle tpu vm", "kaggle tpu node", "colab", "colab tpu", "cloud tpu vm", "tpu node"
]


@dataclass(frozen=True)
class Place:
    """A folder or gs:// prefix with the data, and why it was taken."""

    path: str
    reason: str
    machine: Machine


@dataclass(frozen=True)
class Tried:
    """What a look into a place showed."""

    files: int
    first: str
    seconds: float


def machine(environment: Mapping[str, str], exists: Callable[[str], bool]) -> Machine:
    """What kind of machine this is. A TPU node is remote: it reads with its own file system, so only gs:// will do."""
    on_kaggle = "KAGGLE_KERNEL_RUN_TYPE" in environment or "KAGGLE_URL_BASE" in environment or exists("/kaggle/input")
    on_colab = "COLAB_RELEASE_TAG" in environment or "COLAB_GPU" in environment or "COLAB_TPU_ADDR" in environment
    node = _remote_tpu(environment)
    chips = exists("/dev/accel0") or exists("/dev/vfio/0") or exists("/dev/vfio/vfio")
    if on_kaggle:
        if "ISTPUVM" in environment or (chips and not node):
            return "kaggle tpu vm"
        return "kaggle tpu node" if node else "kaggle"
    if node:
        return "tpu node"
    if on_colab:
        return "colab tpu" if chips else "colab"
    return "cloud tpu vm" if chips else "local"


def decide(
    environment: Mapping[str, str],
    exists: Callable[[str], bool],
    local: str,
    bucket: str,
    slug: str,
    kaggle_path: Callable[[], str],
    inputs: Callable[[], Sequence[str]],
) -> Place:
    """The place of the data, in this order: the user's own bucket, what the machine offers, the local folder.

    environment: of the process.  exists: of a local path.
    local: where `make download` puts the data.  bucket: gs:// prefix by parameter, "" = none.
    slug: of the competition.  kaggle_path: KaggleDatasets().get_gcs_path for it, asked only where it is needed.
    inputs: folders under /kaggle/input that hold the competition's known files (see `find_inputs`).
    """
    found = machine(environment, exists)
    if bucket:
        if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.*)?", bucket):
            raise UserError(f"{bucket!r} is no bucket: expected gs://NAME or gs://NAME/FOLDER.")
        return Place(bucket.rstrip("/"), "the bucket named in the parameters", found)
    if found == "kaggle tpu node":
        path = kaggle_path()
        if not path.startswith("gs://"):
            raise UserError(
                f"Kaggle gave {path} for {slug}, a TPU node reads only gs://: choose the accelerator TPU v5e-8."
            )
        return Place(path, "Kaggle's copy of the competition in a bucket (TPU nodes read nothing else)", found)
    if found == "tpu node":
        raise UserError(
            f"a remote TPU node ({_remote_tpu(environment)}) cannot read the local folder {local}: copy it to a bucket "
            f"(gsutil -m cp -r {local} gs://YOUR_BUCKET/) and name it as the bucket in the parameters, or use a TPU VM."
        )
    if found in {"kaggle", "kaggle tpu vm"} and (attached := list(inputs())):
        why = (
            "attached by Kaggle as a local folder; a TPU VM needs no bucket" if "tpu" in found else "attached by Kaggle"
        )
        return Place(attached[0], why, found)
    if exists(local):
        return Place(local, "the local folder, where `make download` put it", found)
    hints = {
        "kaggle": f"attach the competition {slug} to the notebook (Add Input)",
        "kaggle tpu vm": f"attach the competition {slug} to the notebook (Add Input)",
        "colab": "run `make download` in this session, or name a bucket in the parameters",
        "colab tpu": "run `make download` in this session, or name a bucket in the parameters",
    }
    raise UserError(f"no data is at {local}: {hints.get(found, 'run `make download` first')}.")


def find_inputs(known_file: str, root: str = "/kaggle/input") -> list[str]:
    """Folders under Kaggle's inputs that hold a file or folder of this name, the shallowest first.

    Mount points have changed more than once (/kaggle/input/SLUG, /kaggle/input/competitions/SLUG): so look for it.
    """
    found = []
    for folder, folders, files in os.walk(root):
        if known_file in files or known_file in folders:
            found.append(folder)
        if len(PurePosixPath(folder).relative_to(root).parts) >= 4:
            folders.clear()
    return sorted(found, key=lambda path: (path.count("/"), path))


def try_place(path: str, environment: Mapping[str, str], seconds: float) -> Tried:
    """List the place and read one byte of its first file, within `seconds`; UserError with what is wrong and who asked.

    It is done in a process of its own: TensorFlow's gs:// client retries for many minutes and cannot be interrupted.
    The clock starts when TensorFlow is loaded.  environment: for that process.
    """
    command = [sys.executable, "-c", _LOOK, path, str(seconds)]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    if done.returncode == _LATE:
        raise UserError(f"{path} did not answer within {seconds:g} s: {_why('', path, environment)}.")
    if done.returncode != 0:
        raise UserError(f"{path} cannot be read: {_why(done.stderr, path, environment)}.")
    files, first, took = json.loads(done.stdout.splitlines()[-1])
    if files == 0:
        raise UserError(f"{path} is empty: check the path, and that the data was copied there.")
    return Tried(files, first, took)


_LATE = 99  # exit code
_LOOK = """
import json, os, sys, threading, time
path, seconds = sys.argv[1].rstrip("/"), float(sys.argv[2])
if "://" in path:  # local files need no TensorFlow to be looked at
    import tensorflow as tf
    # glob, because gfile.listdir turns every user_error into "could not find directory"
    listdir = lambda name: [os.path.basename(found) for found in tf.io.gfile.glob(name + "/*")]
    isdir, read = tf.io.gfile.isdir, lambda name: tf.io.gfile.GFile(name, "rb").read(1)
else:
    listdir, isdir, read = os.listdir, os.path.isdir, lambda name: open(name, "rb").read(1)
late = threading.Timer(seconds, lambda: os._exit(99))
late.daemon = True
late.start()
started = time.monotonic()
names = sorted(listdir(path))
first = next((name for name in names if not isdir(path + "/" + name)), "")
if first:
    read(path + "/" + first)
late.cancel()
print(json.dumps([len(names), first, time.monotonic() - started]))
"""


def _remote_tpu(environment: Mapping[str, str]) -> str:
    """Name or address of a remote TPU, "" when there is none. "local" is how a TPU VM calls its own chips."""
    for name in ("TPU_NAME", "COLAB_TPU_ADDR"):
        value = environment.get(name, "")
        if value and value != "local" and "ISTPUVM" not in environment:
            return value
    return ""


def _why(stderr: str, path: str, environment: Mapping[str, str]) -> str:
    """The cause in words, with the account that was used."""
    text = " ".join(stderr.split())
    if not path.startswith("gs://"):
        return text.rsplit(": ", 1)[-1] if text else "the disk does not answer"
    account = _account(environment)
    if re.search(r"\b404\b|does not exist|NotFound", text):
        return f"the bucket or folder does not exist (asked as {account}): check the spelling"
    if re.search(r"\b40[13]\b|PermissionDenied|Anonymous caller|does not have storage", text):
        return f"{account} may not read it: give it the role Storage Object Viewer on the bucket"
    if not text or re.search(r"resolve host|Couldn't connect|timed out|Unavailable|Failed to connect", text):
        return (
            f"Google's storage is not reached from here (asked as {account}): check the network, or switch internet on"
        )
    return f"{text[-200:]} (asked as {account})"


def _account(environment: Mapping[str, str]) -> str:
    if file := environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return f"the account in {file}"
    if environment.get("GOOGLE_AUTH_TOKEN_FOR_TESTING"):
        return "the token in GOOGLE_AUTH_TOKEN_FOR_TESTING"
    if environment.get("NO_GCE_CHECK", "").lower() == "true":
        return "nobody (no credentials were found)"
    return "this machine's service account"


def kaggle_gcs_path(folder: str | None) -> str:
    """KaggleDatasets().get_gcs_path: a gs:// path on a TPU node, a local path on a TPU VM. Only in Kaggle's images."""
    try:
        from kaggle_datasets import KaggleDatasets
    except ImportError as error:
        raise UserError("kaggle_datasets is missing: this is not one of Kaggle's images.") from error
    datasets: Any = KaggleDatasets()
    return str(datasets.get_gcs_path(folder))
