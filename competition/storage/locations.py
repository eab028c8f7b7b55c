"""Choose the location of the data for the current machine, with a reason, and check that it can be read.

`choose_location` is pure: the environment and a test for existing paths are arguments. TensorFlow is imported only to
read a gs:// path.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from competition.config.errors import UserError

Machine = Literal["local", "kaggle", "kaggle tpu node", "tpu node"]


@dataclass(frozen=True)
class DataLocation:
    """A folder or gs:// prefix with the data, and the reason for choosing it."""

    path: str
    reason: str
    machine: Machine


def machine(environment: Mapping[str, str], exists: Callable[[str], bool]) -> Machine:
    """Kind of the current machine. A TPU node is remote and reads gs:// only."""
    on_kaggle = "KAGGLE_KERNEL_RUN_TYPE" in environment or "KAGGLE_URL_BASE" in environment or exists("/kaggle/input")
    if _remote_tpu(environment):
        return "kaggle tpu node" if on_kaggle else "tpu node"
    return "kaggle" if on_kaggle else "local"


def choose_location(
    environment: Mapping[str, str],
    exists: Callable[[str], bool],
    kaggle_path: Callable[[str], str],
    local: str,
    bucket: str,
    slug: str,
) -> DataLocation:
    """Choose the user's bucket, else Kaggle's on a TPU node, else the local folder.

    environment: variables of the process.  exists: whether a local path exists.  kaggle_path: `kaggle_gcs_path`.
    local: folder that `make download` writes.  bucket: gs:// prefix in the parameters, "" = none.
    slug: of the competition on Kaggle.
    """
    kind = machine(environment, exists)
    if bucket:
        if not re.fullmatch(r"[a-z0-9]+://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.*)?", bucket):
            raise UserError(f"{bucket!r} is not a bucket: expected gs://NAME or gs://NAME/FOLDER (or s3://).")
        if kind.endswith("tpu node") and not bucket.startswith("gs://"):
            raise UserError(f"{bucket}: a remote TPU node reads only gs://: copy the data to a gs:// bucket.")
        return DataLocation(bucket.rstrip("/"), "the bucket named in the parameters", kind)
    if kind == "kaggle tpu node":
        path = kaggle_path(slug)
        if not path.startswith("gs://"):
            raise UserError(f"Kaggle returned {path}, a TPU node reads only gs://: choose the accelerator TPU v5e-8.")
        return DataLocation(path, "Kaggle's copy of the competition in a bucket (TPU nodes read gs:// only)", kind)
    if kind == "tpu node":
        raise UserError(
            f"a remote TPU node ({_remote_tpu(environment)}) cannot read the local folder {local}: copy it to a bucket "
            f"(gsutil -m cp -r {local} gs://YOUR_BUCKET/) and name it as the bucket in the parameters, or use a TPU VM."
        )
    if exists(local):
        return DataLocation(local, "the local folder, where `make download` put it", kind)
    remedy = "run `make download` first"
    if kind == "kaggle":
        remedy = f"attach the competition {slug} to the notebook (Add Input)"
    raise UserError(f"there is no data in {local}: {remedy}.")


def find_inputs(known_file: str, root: str = "/kaggle/input") -> list[str]:
    """Folders under Kaggle's inputs that hold a file or folder called `known_file`, the shallowest first.

    Searched, because Kaggle changes the mount points (/kaggle/input/SLUG, /kaggle/input/competitions/SLUG).
    """
    matches = [path for depth in range(5) for path in sorted(Path(root).glob("*/" * depth + known_file))]
    return [str(path.parent) for path in matches]


def try_place(path: str, environment: Mapping[str, str], seconds: float) -> str:
    """List a location and read one byte of its first file within `seconds`; return what was read in how many seconds, in words.

    Raises UserError with the cause and the account.

    Runs in a child process: TensorFlow's gs:// client retries for many minutes and cannot be interrupted.
    The time starts when TensorFlow is loaded.  environment: of the child process.
    """
    command = [sys.executable, "-c", _READ, path, str(seconds)]
    child = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    if child.returncode == _TIMEOUT:
        raise UserError(f"{path} did not answer within {seconds:g} s: {_cause('', path, environment)}.")
    if child.returncode != 0:
        raise UserError(f"{path} cannot be read: {_cause(child.stderr, path, environment)}.")
    entries, duration = json.loads(child.stdout.splitlines()[-1])
    if entries == 0:
        raise UserError(f"{path} is empty: check the path, and that the data was copied there.")
    return f"{entries} entries, read in {duration:.1f} s"


_TIMEOUT = 99  # exit code of _READ
_READ = """
import json, os, sys, threading, time
path, seconds = sys.argv[1].rstrip("/"), float(sys.argv[2])
if "://" in path and not path.startswith("gs://"):
    import fsspec
    fs = fsspec.filesystem(path.partition("://")[0])
    listdir = lambda name: [os.path.basename(entry) for entry in fs.ls(name, detail=False)]
    isdir, read = fs.isdir, lambda name: fs.open(name, "rb").read(1)
elif "://" in path:  # local files are read without TensorFlow
    import tensorflow as tf
    # glob, because gfile.listdir turns every error into "could not find directory"
    listdir = lambda name: [os.path.basename(entry) for entry in tf.io.gfile.glob(name + "/*")]
    isdir, read = tf.io.gfile.isdir, lambda name: tf.io.gfile.GFile(name, "rb").read(1)
else:
    listdir, isdir, read = os.listdir, os.path.isdir, lambda name: open(name, "rb").read(1)
timer = threading.Timer(seconds, lambda: os._exit(99))
timer.daemon = True
timer.start()
started = time.monotonic()
names = sorted(listdir(path))
first = next((name for name in names if not isdir(path + "/" + name)), "")
if first:
    read(path + "/" + first)
timer.cancel()
print(json.dumps([len(names), time.monotonic() - started]))
"""


def _remote_tpu(environment: Mapping[str, str]) -> str:
    """Name or address of a remote TPU; "" if there is none. A TPU VM calls its own chips "local"."""
    names = [] if "ISTPUVM" in environment else ["TPU_NAME", "COLAB_TPU_ADDR"]
    return next((environment[name] for name in names if environment.get(name, "") not in ("", "local")), "")


def _cause(stderr: str, path: str, environment: Mapping[str, str]) -> str:
    """Cause of a failed read in words, with the account that was used."""
    text = " ".join(stderr.split())
    if not path.startswith("gs://"):
        silent = "the storage does not answer" if "://" in path else "the disk does not answer"
        return f"{text[-200:] or silent}; check the address and the access to it"
    account = "this machine's service account"
    if file := environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        account = f"the account in {file}"
    if re.search(r"\b404\b|does not exist|NotFound", text):
        return f"the bucket or folder does not exist (account: {account}): check the spelling"
    if re.search(r"\b40[13]\b|PermissionDenied|Anonymous caller|does not have storage", text):
        return f"{account} has no read access: grant it the role Storage Object Viewer on the bucket"
    if not text or re.search(r"resolve host|Couldn't connect|timed out|Unavailable|Failed to connect", text):
        return f"Google's storage cannot be reached (account: {account}): check the network, or enable internet access"
    return f"{text[-200:]} (account: {account})"


def kaggle_gcs_path(slug: str) -> str:
    """KaggleDatasets().get_gcs_path: a gs:// path on a TPU node, a local path on a TPU VM. Only in Kaggle's images."""
    try:
        from kaggle_datasets import KaggleDatasets
    except ImportError as error:
        raise UserError("kaggle_datasets is missing: this is not one of Kaggle's images.") from error
    return str(KaggleDatasets().get_gcs_path(slug))
