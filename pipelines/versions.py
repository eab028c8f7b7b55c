"""What a result was made with: versions of packages, and the commit of the code."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS_OF = (
    "numpy",
    "keras",
    "tensorflow-cpu",
    "tensorflow",
    "tensorflow-tpu",
    "jax",
    "pandas",
    "scikit-learn",
    "optuna",
)


def is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in VERSIONS_OF:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str:
    """The commit this ran from, '+' behind it when files differ from it; '' outside a repository."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip() + ("+" if dirty.stdout.strip() else "")
