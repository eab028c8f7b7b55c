"""`subprocess.Popen` of Python modules as forks of this process, which has imported the large packages and started no device."""

import atexit
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import IO, Any

from preloaded import become

NewProcess = subprocess.Popen


class ForkedPython:
    """[python, "-m", module, ...] with or without -u; any other command starts a new process."""

    def __new__(cls, command: Sequence[str], **options: Any) -> Any:
        return super().__new__(cls) if "-m" in command[1:3] else NewProcess(command, **options)

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
        **_: Any,
    ):
        module, *arguments = command[command.index("-m") + 1 :]
        receiving, sending = os.pipe() if stdout == subprocess.PIPE else (None, 1)
        sys.stdout.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            become(cwd, dict(env or os.environ), sending, sending)
            os._exit(_run(module, *arguments))
        self.stdout: IO[str] | None = None
        if receiving is not None:
            os.close(sending)
            self.stdout = os.fdopen(receiving, encoding="utf-8")

    def wait(self, seconds: float = inf) -> int:
        end = time.monotonic() + seconds
        while self.returncode is None:
            number, status = os.waitpid(self.pid, os.WNOHANG)
            if number:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise subprocess.TimeoutExpired(sys.argv, seconds)
            else:
                time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "ForkedPython":
        return self

    def __exit__(self, *_: object) -> None:
        if self.stdout:
            self.stdout.close()
        self.wait()


def _run(module: str, *arguments: str) -> int:
    """Run a module as `python -m` and return the exit code."""
    sys.argv, sys.path[0] = [module, *arguments], str(Path.cwd())
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code if isinstance(code, int) else int(code is not None)
