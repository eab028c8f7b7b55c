"""Versions recorded with every result: those of the packages, and the commit of the code."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from competition.training.backend import is_installed

ROOT = Path(__file__).resolve().parents[2]
RECORDED_PACKAGES = (
    "numpy", "keras", "tensorflow-cpu", "tensorflow", "tensorflow-tpu", "jax", "pandas", "scikit-learn", "optuna",
    "opencv-python-headless",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Package -> version, for Python and the installed ones of RECORDED_PACKAGES."""
    installed = {package: version(package) for package in RECORDED_PACKAGES if is_installed(package)}
    return {"python": ".".join(map(str, sys.version_info[:3])), **installed}


def git_commit() -> str:
    """The current commit, followed by "+" if tracked files differ from it; "" outside a repository."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
