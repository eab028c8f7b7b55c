"""Run a module or code in a process that has already imported what stages need: seconds of each of many hundred processes.

The process is forked by the standard library's fork server, which has imported the modules of preloaded_modules.py and started
nothing else: no stage and no device; its only threads are those of OpenBLAS, which starts them again after a fork. TensorFlow
has imported Keras, so a process that is to use another backend starts Python itself, as do tests of what a stage imports.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

TESTS = Path(__file__).resolve().parent
READ_AT_IMPORT = ("JAX_", "KERAS_", "LD_", "OMP_", "PYTHON", "TF_", "XLA_")  # variables of the packages and of Python
LIMIT = 600.0  # seconds
NewProcess = subprocess.Popen
STREAMS = ("stdin", "stdout", "stderr")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["preloaded_modules"])


def run_preloaded(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    code: str = "",
    meanwhile: Callable[[ForkServerProcess], None] = lambda process: None,
) -> tuple[int, str, str]:
    """`python -m module arguments` in `folder`: (exit code, stdout, stderr).

    environment: without other READ_AT_IMPORT than the test's.  code: runs first, or alone if the module is "".
    meanwhile: is called with the process while it runs.
    """
    with tempfile.TemporaryDirectory(prefix="stage") as outputs:
        paths = [str(Path(outputs) / name) for name in ("out", "err")]
        process = start_process(_run, module, [*arguments], folder, dict(environment), code, *paths)
        meanwhile(process)
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"{module} took more than {LIMIT:.0f} s: {Path(paths[1]).read_text()}")
        assert process.exitcode is not None
        out, err = (Path(path).read_text(encoding="utf-8") for path in paths)
        if kept := os.environ.get("GOLDFOLD_KEPT_OUTPUT"):  # tests/secret_scan.py reads it
            Path(kept, Path(outputs).name).write_text(out + err, encoding="utf-8")
        return process.exitcode, out, err


def start_process(target: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """Call target(*arguments) in a process that is forked from the server."""
    _start_server()
    process = _context.Process(target=target, args=arguments)
    process.start()
    return process


@cache
def _start_server() -> None:
    """The server imports by PYTHONPATH, as it does not get the path of the tests."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), *([before] if before else [])])
    try:
        ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def become(folder: Path, environment: Mapping[str, str], out: int, err: int) -> None:
    """Give this forked process a folder, variables, and file descriptors for stdout and stderr."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # as this process's variables say


def _run(
    module: str, arguments: list[str], folder: Path, environment: dict[str, str], code: str, out: str, err: str
) -> None:
    become(folder, environment, *(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in (out, err)))
    sys.argv, sys.path[0] = [module or "-c", *arguments], str(folder)
    sys.modules.pop(module, None)  # it is run, not imported
    try:
        if code:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # a child of multiprocessing does not do so by itself


class ForkedPython:
    """`subprocess.Popen` of modules as forks of this process, which has imported the large packages and started no device.

    [python, "-m", module, ...] with or without -u or -P; any other command starts a new process.
    """

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
        return (popen if "competition.kaggle.child_actions" in command else NewProcess)(command, **options)

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
