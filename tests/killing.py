"""Run Python code in a process that kills itself before its n-th change of a folder."""

import os
import signal
import subprocess
import sys

from builders import ROOT

PRELUDE = """
import os, shutil, signal
remaining = [{count}]
def counted(function):
    def call(*arguments, **options):
        if remaining[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        remaining[0] -= 1
        return function(*arguments, **options)
    return call
os.rename, os.replace, os.mkdir, shutil.rmtree = map(counted, (os.rename, os.replace, os.mkdir, shutil.rmtree))
"""


def is_killed(code: str, count: int) -> bool:
    """Run `code`; return True if it was killed before change number `count` (from 0), False if it ended before that."""
    command = [sys.executable, "-c", PRELUDE.format(count=count) + code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
    return ran.returncode != 0
