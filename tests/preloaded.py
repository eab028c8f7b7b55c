"""Run a module or code in a process that has already imported what stages need: seconds of each of many hundred processes.

The process is forked by the standard library's fork server, which has imported the modules of preloaded_modules.py and started
nothing else: no stage and no device; its only threads are those of OpenBLAS, which starts them again after a fork. TensorFlow
has imported Keras, so a process that is to use another backend starts Python itself, as do tests of what a stage imports.
"""

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path

TESTS = Path(__file__).resolve().parent
READ_AT_IMPORT = ("JAX_", "KERAS_", "LD_", "OMP_", "PYTHON", "TF_", "XLA_")  # variables of the packages and of Python
LIMIT = 600.0  # seconds

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
