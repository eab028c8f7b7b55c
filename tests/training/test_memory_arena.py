"""Memory of the training process: one arena for all threads."""

import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT

ALLOCATE = """
import ctypes, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from competition.training.backend import keep_freed_memory
if sys.argv[2] == "one":
    keep_freed_memory()
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda n: [np.ones(1_000 + k).sum() for k in range(2_000)], range(16)))
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_info is of glibc")
def test_threads_take_memory_from_one_arena(tmp_path: Path) -> None:
    arenas = {}
    for kind in ("one", "many"):
        file = tmp_path / kind
        subprocess.run([sys.executable, "-c", ALLOCATE, file, kind], cwd=ROOT, check=True)
        arenas[kind] = file.read_text().count("<heap nr=")
    assert arenas["one"] == 1 < arenas["many"]
