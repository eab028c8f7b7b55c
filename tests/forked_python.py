"""`subprocess.Popen` of Python modules as forks of this process, which has imported the large packages and started no device."""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from preloaded import become, start_process

NewProcess = subprocess.Popen
STREAMS = ("stdin", "stdout", "stderr")


class ForkedPython:
    """[python, "-m", module, ...] with or without -u or -P; any other command starts a new process."""

    stdin: IO[str] | None = None
    stdout: IO[str] | None = None
    stderr: IO[str] | None = None

    def __new__(cls, command: Sequence[str], **options: Any) -> Any:
        return super().__new__(cls) if "-m" in command[1:3] else NewProcess(command, **options)

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any) -> None:
        """options: cwd, start_new_session, and the streams; stderr that is no pipe of its own goes where stdout goes."""
        pipes = {name: os.pipe() for name in STREAMS if options.get(name) == subprocess.PIPE}
        sys.stdout.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            if options.get("start_new_session"):
                os.setsid()
            if "stdin" in pipes:
                os.dup2(pipes["stdin"][0], 0)
            out = pipes.get("stdout", (1, 1))[1]
            become(options.get("cwd") or Path.cwd(), env or dict(os.environ), out, pipes.get("stderr", (out, out))[1])
            for end in (end for pipe in pipes.values() for end in pipe):
                os.close(end)
            os._exit(run_module(*command[command.index("-m") + 1 :]))
        for name, (receiving, sending) in pipes.items():
            ours, other, mode = (sending, receiving, "w") if name == "stdin" else (receiving, sending, "r")
            os.close(other)
            setattr(self, name, os.fdopen(ours, mode, encoding="utf-8"))

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


def forking(popen: type) -> SimpleNamespace:
    """`subprocess` for competition.files.child_process, whose requests to Kaggle are such forks: 0.02 s of processor time, not 0.4."""

    def start(command: Sequence[str], **options: Any) -> Any:
        return (popen if "competition.kaggle.child" in command else NewProcess)(command, **options)

    return SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)


class ServedPython:
    """The same with three pipes and a session of its own, forked from the server of preloaded.py: for a process with threads."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **_: Any) -> None:
        pipes = [multiprocessing.Pipe(duplex=False) for _ in STREAMS]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        self._process = start_process(_serve, command[command.index("-m") + 1 :], dict(env), *theirs)
        for end in theirs:
            end.close()
        ours = zip((pipes[0][1], pipes[1][0], pipes[2][0]), "wrr", strict=True)
        self.stdin, self.stdout, self.stderr = (os.fdopen(os.dup(end.fileno()), mode) for end, mode in ours)
        self.pid = self._process.pid

    def wait(self) -> None:
        self._process.join()


def _serve(arguments: Sequence[str], environment: Mapping[str, str], *pipes: Connection) -> None:
    os.setsid()
    os.dup2(pipes[0].fileno(), 0)
    become(Path.cwd(), environment, pipes[1].fileno(), pipes[2].fileno())
    for pipe in pipes:
        pipe.close()
    os._exit(run_module(*arguments))


def run_module(module: str, *arguments: str) -> int:
    """Run a module as `python -m` and return the exit code."""
    sys.argv, sys.path[0] = [module, *arguments], str(Path.cwd())
    sys.modules.pop(module, None)  # it is run, not imported
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
