"""The commit of the code, recorded with submissions and exports."""

import subprocess

from pipelines.terminal.options import ROOT


def git_commit() -> str:
    """The current commit, followed by "+" if tracked files differ from it; "" outside a repository."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
