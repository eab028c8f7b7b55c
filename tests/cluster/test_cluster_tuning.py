"""`make tune CLUSTER=... WORKERS=n`: trials of one study on real Ray nodes, of which one is killed."""

import json
from pathlib import Path

import optuna
import pytest
from ray_nodes import Node
from stages import Workspace
from test_cluster import HEAD, OTHER, logs_of, started, wait_for, wait_for_end

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.tuning.choice import origin_of
from competition.tuning.storage import open_storage
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.execution.cluster_child import work_on_the_study
from pipelines.execution.cluster_tuning import check_reachable
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job

pytestmark = pytest.mark.timeout(900)
PASSWORD = "d4t4base-s3cret"
SEARCH = "{learning_rate: {low: 0.001, high: 0.03, log: true}}"


def settings(storage: str, trials: int) -> str:
    return (
        f"tune.trials={trials} tune.folds=[0,1] tune.members=[slim] 'tune.search={SEARCH}' tune.pruner=none tune.heartbeat=0.5 "
        f"tune.confirm_seeds=1 train.epochs=1 tune.storage={storage}"
    )


def trials_of(url: str) -> list[optuna.trial.FrozenTrial]:
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
    assert f"was lost on {OTHER} and is started again on {HEAD} (try 2 of 4)" in output
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


@pytest.mark.parametrize(
    ("storage", "shared", "message"),
    [
        ("", "", "tune.storage is empty and the journal is on this machine"),
        ("sqlite:///studies.db", "/mnt/all", "SQLite, a file that one machine writes"),
    ],
)
def test_a_storage_that_only_this_machine_opens_is_refused(storage: str, shared: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_reachable(storage, shared)


def test_a_machine_that_would_work_on_another_study_refuses_to(finished: Workspace, tmp_path: Path) -> None:
    params = load_params(finished.params, parse_overrides(settings("", 2)))
    job = Job(LibraryWorkspace(finished.work, params), Options(finished.params, work=tmp_path), tmp_path)
    values = {"study": "slim-0123", "depends": {"data": "0" * 64}, "storage": ""}
    with pytest.raises(UserError, match=r"this machine would work on another study .*: its packages or files differ"):
        work_on_the_study(job, "slim", values)
    assert not list(tmp_path.iterdir())
