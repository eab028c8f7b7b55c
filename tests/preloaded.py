"""Run a module in a process that has already imported the large packages: a second or two of each of many hundred stages.

The process is forked by the standard library's fork server, which has imported PACKAGES and started nothing else: no stage and
no device; its only threads are those of OpenBLAS, which starts them again after a fork. Keras is not among the packages, because
a stage chooses its backend before the import. Tests of what a stage imports start Python themselves.
"""

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGES = ["tensorflow", "pandas", "scipy.optimize", "sklearn.metrics", "pydantic", "rich.progress", "yaml"]
READ_AT_IMPORT = ("JAX_", "KERAS_", "LD_", "OMP_", "PYTHON", "TF_", "XLA_")  # variables of these packages and of Python
LIMIT = 600.0  # seconds

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PACKAGES)


def run_preloaded(
    module: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """`python -m module arguments` in `folder`: (exit code, stdout, stderr).  environment: without other READ_AT_IMPORT."""
    with tempfile.TemporaryDirectory(prefix="stage") as outputs:
        paths = [str(Path(outputs) / name) for name in ("out", "err")]
        process = _context.Process(target=_run, args=(module, [*arguments], str(folder), dict(environment), *paths))
        process.start()
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"{module} took more than {LIMIT:.0f} s: {Path(paths[1]).read_text()}")
        assert process.exitcode is not None
        out, err = (Path(path).read_text(encoding="utf-8") for path in paths)
        return process.exitcode, out, err


def _run(module: str, arguments: list[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = [module, *arguments], folder
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # a child of multiprocessing does not do so by itself
