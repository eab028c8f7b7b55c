"""The long tests of clusters, which `make test-cluster` runs and `make test` does not: minutes on two cores."""

import shutil
import signal
from pathlib import Path

import pytest
from ray_nodes import RayCluster
from stages import Workspace, new_workspace
from test_cluster import HEAD, OTHER, checkpoints_in, files_of, started, wait_for, wait_for_end

pytestmark = pytest.mark.timeout(3000)
MEMBERS = """
members:
  cnn: {architecture: cnn, image_size: 32, alpha: 0.5, weights: none}
  pupil: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none, teacher: [cnn]}
  averaged: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none, teacher: [twins]}
  twins: {architecture: cnn, image_size: 16, alpha: 0.5, weights: none, seeds: 2}
"""
SETS = "train.epochs=8"


@pytest.fixture
def prepared(tmp_path: Path) -> Workspace:
    workspace = new_workspace(tmp_path / "workspace")
    head, _, tail = workspace.params.read_text().partition("members:")
    workspace.params.write_text(head + MEMBERS.lstrip() + tail[tail.index("predict:") :])
    for stage in ("download", "prepare", "resolve"):
        workspace.do(stage)
    return workspace


def test_teachers_students_and_seeds_are_those_of_one_machine(prepared: Workspace, ray_cluster: RayCluster) -> None:
    alone = prepared.copy_to(prepared.folder.with_name("alone"))
    alone.do("train", sets=SETS)
    ray_cluster.start(HEAD)
    other = ray_cluster.start(OTHER)
    process = started(prepared, "train", ray_cluster, sets=SETS)
    wait_for(lambda: checkpoints_in(ray_cluster.folder / f"home-{OTHER}"), process, 600)
    other.kill()
    wait_for(lambda: len(prepared.weights()) >= 4, process, 1200)
    ray_cluster.nodes.remove(other)
    ray_cluster.start(OTHER)  # it comes back, and joins the running command
    output, _ = process.communicate(timeout=2400)
    assert process.returncode == 0, output
    # 5 runs (twins has two seeds) of 3 folds.
    assert sum("held-out rows" in line for line in output.splitlines()) == 5 * 3
    for name in ("weights.npz", "oof.npz", "history.csv"):
        assert files_of(prepared, name) == files_of(alone, name)
    wait_for_end()
    assert "current" in prepared.do("train", sets=SETS)


def test_ctrl_c_leaves_checkpoints_and_the_same_command_continues_there(prepared, ray_cluster):
    ray_cluster.start(HEAD)
    arguments, sets = ("--member", "cnn", "--fold", "0"), "train.epochs=40"
    process = started(prepared, "train", ray_cluster, *arguments, sets=sets)
    wait_for(lambda: checkpoints_in(ray_cluster.folder / f"home-{HEAD}"), process, 600)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130 and "stopping 1 running tasks" in output, output
    wait_for_end()
    assert checkpoints_in(ray_cluster.folder / f"home-{HEAD}") and prepared.weights() == {}
    assert "train cnn fold 0:" in prepared.do("train", "--cluster", ray_cluster.address, *arguments, sets=sets)
    assert list(prepared.weights()) == ["cnn/fold0"] and not checkpoints_in(ray_cluster.folder / f"home-{HEAD}")


def test_a_killed_driver_starts_again_where_it_was(finished, untrained, ray_cluster):
    ray_cluster.start(HEAD)
    shared = untrained.folder / "shared"
    tasks, sets = shared / "tasks", f"cluster.shared={shared}"
    process = started(untrained, "train", ray_cluster, sets=sets)
    wait_for(lambda: list(untrained.work.glob("members/*/*/fold0/manifest.json")) and checkpoints_in(tasks), process)
    process.kill()
    process.communicate()
    home = ray_cluster.folder / f"home-{HEAD}"
    wait_for_end()
    delivered = {path: state for path, state in untrained.files().items() if path.endswith("fold0/manifest.json")}
    for path in delivered:  # the driver may die before the folder of a finished task is removed
        run = Path(path).parent.as_posix().partition("/members/")[2].replace("/", "-")
        (tasks / f"small-members-{run}").mkdir(exist_ok=True)
    shutil.rmtree(home / ".cache")  # as if the machine was another one
    output = untrained.do("train", "--cluster", ray_cluster.address, sets=sets)
    assert output.count("held-out rows") < 6
    assert delivered and delivered.items() <= untrained.files().items()
    for name in ("weights.npz", "oof.npz", "history.csv"):
        assert files_of(untrained, name) == files_of(finished, name)
    assert not list(tasks.iterdir())
