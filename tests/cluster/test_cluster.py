"""`make train predict` on two real Ray nodes with a folder each, which share nothing; one of them is killed."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import ROOT
from ray_nodes import RayCluster, command_of, process_ids
from stages import Workspace

pytestmark = pytest.mark.timeout(900)
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
SECRET, TOKEN = "k4gg1e-s3cret-0123456789", "r4y-t0ken-abcdefghijklmnopqrstuvwxyz0123"


def started(
    workspace: Workspace, stage: str, cluster: RayCluster, *arguments: str, sets: str = ""
) -> subprocess.Popen[str]:
    command = workspace.command(stage, "--cluster", cluster.address, *arguments, sets=sets)
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def checkpoints_in(folder: Path) -> list[str]:
    """Paths of checkpoints below a folder from which others disappear meanwhile."""
    walked = ((place, files) for place, _, files in os.walk(folder) if place.endswith("checkpoints"))
    return [f"{place}/{file}" for place, files in walked for file in files if file.endswith(".json")]


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(process.communicate()[0])
        time.sleep(0.02)


def files_of(workspace: Workspace, name: str) -> dict[str, bytes]:
    paths = workspace.work.glob(f"members/*/*/fold*/{name}")
    return {path.relative_to(workspace.work).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.long
def test_a_killed_node_changes_nothing_in_the_results(finished, workspace, ray_cluster, monkeypatch):
    for fold in (0, 1):  # one for each node
        shutil.rmtree(workspace.fold("slim", fold))
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "KAGGLE_KEY": SECRET}.items():
        monkeypatch.setenv(name, value)
    ray_cluster.start(HEAD)
    other = ray_cluster.start(OTHER)
    process = started(workspace, "train", ray_cluster)
    wait_for(lambda: checkpoints_in(ray_cluster.folder / f"home-{OTHER}"), process)
    other.kill()
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert f"was lost on {OTHER} and is started again on {HEAD} (try 2 of 4)" in output
    assert "Traceback" not in output
    # Each fold model exactly once, and it and its predictions equal those of one process on one machine.
    # Ray writes to the same pipe, also in front of a line.
    trained = re.findall(r"train (\w+ fold \d): \w+ [\d.]+ on its held-out rows", output)
    assert sorted(trained) == ["slim fold 0", "slim fold 1"], output
    output = workspace.do("predict", "--cluster", ray_cluster.address)
    assert sorted(re.findall(r"predict (\w+ fold \d)", output)) == ["slim fold 0", "slim fold 1"], output
    for name in ("weights.npz", "oof.npz", "history.csv", "views/*/oof.npz", "views/*/test.npz"):
        assert files_of(workspace, name) == files_of(finished, name)
    # No process of the killed node is left, and no secret in what Ray wrote.
    wait_for_end(other.processes)
    logs = logs_of(ray_cluster)
    assert logs and not any(secret.encode() in log for log in logs for secret in (SECRET, TOKEN))
    output = workspace.do("train", "--cluster", ray_cluster.address)
    assert "train slim: 3 of 3 fold models current" in output and "cluster:" not in output


def logs_of(cluster: RayCluster) -> list[bytes]:
    """What Ray has written."""
    files = Path(cluster.temporary).rglob("*")
    return [path.read_bytes() for path in files if path.is_file() and not path.is_symlink()]


def children() -> list[int]:
    """The processes that compute tasks."""
    return [number for number in process_ids() if "pipelines.execution.cluster_child" in command_of(number)]


def wait_for_end(processes: Callable[[], object] = children) -> None:
    """Wait at most 30 s until there are no such processes."""
    end = time.monotonic() + 30
    while processes() and time.monotonic() < end:
        time.sleep(0.1)
    assert not processes()
