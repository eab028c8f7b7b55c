"""Every engine of Apache Beam that runs here writes the bytes of one process. `make test-beam` runs this file.

It runs without conftest.py, in an environment without TensorFlow and pandas.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("apache_beam", reason="apache-beam is not installed here; make test-beam installs it")
from small_source import digests, recipe_of, rows_of, shards_of, stamps, write_photos

from competition.tfrecord_export.beam import save_work
from competition.tfrecord_export.shard import convert_shard, finished_shard

ROOT = Path(__file__).parents[2]
DASK_RUNNER = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"  # Beam knows no short name for it
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    # The worker pool starts `python` from the PATH.
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


@pytest.fixture
def work(tmp_path):
    """(shards, recipe, paths of the work list, expected digests)"""
    source = write_photos(tmp_path / "source")
    shards, recipe = shards_of(rows_of(source)), recipe_of(source, tmp_path / "target")
    alone = replace(recipe, target=str(tmp_path / "alone"))
    for shard in shards:
        convert_shard(shard, alone)
    return shards, recipe, save_work(shards, recipe), digests(alone.target)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def service(*command: str, port: int):
    """Run a Beam or Dask service in a process group of its own until the end of the block."""
    words = [sys.executable, "-m", *command]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=-3, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while port:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < end, f"{command} did not start"
            time.sleep(0.2)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def portable():
    """A job server and a pool of workers, each a process of its own."""
    jobs, pool = free_port(), free_port()
    with ExitStack() as stack:
        server = "apache_beam.runners.portability.local_job_service_main"
        stack.enter_context(service(server, f"--port={jobs}", port=jobs))
        worker = "apache_beam.runners.worker.worker_pool_main"
        stack.enter_context(service(worker, f"--service_port={pool}", port=pool))
        environment = ["--environment_type=EXTERNAL", f"--environment_config=localhost:{pool}"]
        runner = ["--runner=PortableRunner", f"--job_endpoint=localhost:{jobs}", "--sdk_worker_parallelism=2"]
        yield [*runner, *environment]


@contextmanager
def dask():
    """A scheduler and two workers, each a process of its own."""
    pytest.importorskip("distributed", reason="dask is not installed here")
    port = free_port()
    with ExitStack() as stack:
        scheduler = ("distributed.cli.dask_scheduler", "--host=127.0.0.1", f"--port={port}", "--no-dashboard")
        stack.enter_context(service(*scheduler, port=port))
        for _ in range(2):
            worker = ("distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads=1", "--no-dashboard")
            stack.enter_context(service(*worker, port=0))
        yield [DASK_RUNNER, f"--dask_client_address=tcp://127.0.0.1:{port}"]


def direct(mode: str):
    return nullcontext(["--runner=DirectRunner", f"--direct_running_mode={mode}", "--direct_num_workers=2"])


ENGINES = {
    "direct in memory": lambda: direct("in_memory"), "direct threads": lambda: direct("multi_threading"),
    "portable": portable, "dask": dask,
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_writes_the_bytes_of_one_process_and_leaves_finished_shards_alone(work, name):
    shards, recipe, _, expected = work
    convert_shard(shards[0], recipe)
    finished = stamps(recipe.target)
    command = [sys.executable, "-m", "pipelines.execution.convert_beam", recipe.target]  # as `make convert` starts it
    with ENGINES[name]() as arguments:
        subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, input=json.dumps(arguments), text=True, check=True)
    assert digests(recipe.target) == expected and len(expected) == 6
    assert len(finished) == 2 and finished.items() <= stamps(recipe.target).items()
    assert all(finished_shard(shard, recipe) for shard in shards)


def test_the_environment_of_beam_has_no_tensorflow_and_the_shard_function_needs_none(work):
    code = "import sys, pipelines.execution.convert_beam; print(sorted({'tensorflow', 'pandas', 'scipy'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stderr
