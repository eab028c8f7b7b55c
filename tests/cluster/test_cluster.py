"""`make train predict` and `make tune` on two real Ray nodes with a folder each, which share nothing; one of them is killed."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import ROOT, wait_until
from ray_nodes import Node, RayCluster, command_of, process_ids
from stages import Workspace

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.tuning.choice import origin_of
from competition.tuning.storage import open_storage
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.execution.cluster import require_reachable_storage
from pipelines.execution.cluster_child import work_on_the_study
from pipelines.terminal.job import Job
from pipelines.terminal.options import Options

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
    assert f"failed or was lost on {OTHER} and is started again on {HEAD} (try 2 of 4)" in output
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
    files = Path(cluster.temporary).rglob("*")
    return [path.read_bytes() for path in files if path.is_file() and not path.is_symlink()]


def children() -> list[int]:
    return [number for number in process_ids() if "pipelines.execution.cluster_child" in command_of(number)]


def wait_for_end(processes: Callable[[], object] = children) -> None:
    """Wait at most 30 s until there are no such processes."""
    assert wait_until(lambda: not processes())


# `make tune CLUSTER=... WORKERS=n`: trials of one study.
PASSWORD = "d4t4base-s3cret"
SEARCH = "{learning_rate: {low: 0.001, high: 0.03, log: true}}"


def settings(storage: str, trials: int) -> str:
    return (
        f"tune.trials={trials} tune.folds=[0,1] tune.members=[slim] 'tune.search={SEARCH}' tune.pruner=none tune.heartbeat=0.5 "
        f"tune.confirm_seeds=1 train.epochs=1 tune.storage={storage}"
    )


def trials_of(url: str) -> list:
    """All trials of the only study in a database, [] before there is one."""
    storage = open_storage(url, Path())
    return [trial for study in storage.get_all_studies() for trial in storage.get_all_trials(study._study_id)]


def running_on(url: str, node: Node) -> list[int]:
    """Ids of the node's processes that run a trial."""
    workers = [trial.user_attrs.get("worker", "") for trial in trials_of(url) if trial.state.name == "RUNNING"]
    numbers = {int(worker.rpartition("/")[2]) for worker in workers if worker}
    return sorted(numbers & node.processes())


@pytest.mark.long
def test_every_trial_of_a_study_counts_once_although_a_machine_is_killed(finished, ray_cluster, postgres, tmp_path):
    workspace, trials = finished.copy_to(tmp_path / "workspace"), 4
    url = postgres.replace("goldfold@", f"goldfold:{PASSWORD}@")  # PostgreSQL of the tests accepts any password
    ray_cluster.start(HEAD)
    other = ray_cluster.start(OTHER)
    process = started(workspace, "tune", ray_cluster, "--workers", "2", sets=settings(url, trials))
    wait_for(lambda: running_on(url, other), process)
    other.kill()
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert f"failed or was lost on {OTHER} and is started again on {HEAD} (try 2 of 4)" in output
    assert f"cluster: {HEAD}: tune slim: trial" in output and f"{trials} of {trials} trials done" in output
    every = trials_of(url)
    complete = [trial for trial in every if trial.state.name == "COMPLETE"]
    assert len(complete) == len({origin_of(trial) for trial in complete}) == trials
    assert len({str(trial.params) for trial in complete}) == trials
    assert {trial.state.name for trial in every} == {"COMPLETE", "FAIL"}
    assert [trial for trial in every if "retry_of" in trial.user_attrs]
    (best,) = workspace.work.glob("tune/slim/*/best.json")
    assert json.loads(best.read_text())["trials"] == trials
    wait_for_end(other.processes)
    wait_for_end()
    # The password of the database reached the workers, and no file and no line.
    homes = [path.read_bytes() for path in ray_cluster.folder.rglob("home-*/.cache/**/*") if path.is_file()]
    logs = logs_of(ray_cluster)
    assert homes and logs and PASSWORD not in output
    assert not any(PASSWORD.encode() in content for content in [*homes, *logs])


def test_a_storage_that_only_this_machine_opens_is_refused() -> None:
    with pytest.raises(UserError, match=r"tune.storage is empty and the journal is on this machine"):
        require_reachable_storage("")
    with pytest.raises(UserError, match="SQLite, a file that one machine writes"):
        require_reachable_storage("sqlite:///studies.db")


def test_a_machine_that_would_work_on_another_study_refuses_to(finished: Workspace, tmp_path: Path) -> None:
    params = load_params(finished.params, parse_overrides(settings("", 2)))
    job = Job(LibraryWorkspace(finished.work, params), Options(finished.params, work=tmp_path), tmp_path)
    values = {"study": "slim-0123", "depends": {"data": "0" * 64}, "storage": ""}
    with pytest.raises(UserError, match=r"this machine would work on another study .*: its packages or files differ"):
        work_on_the_study(job, "slim", values)
    assert not list(tmp_path.iterdir())
