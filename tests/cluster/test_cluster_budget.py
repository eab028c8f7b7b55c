"""`make train HOURS=20 CLUSTER=...` on two real Ray nodes: features and heads here, networks there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import ROOT
from ray_nodes import RayCluster, ray_nodes
from stages import Workspace
from test_cluster import wait_for_end

from competition.config.params_file import BUDGET_FILE, load_params

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
HEAD, OTHER = "127.0.0.6", "127.0.0.7"
HOURS = ("--hours", "20")  # no head takes so much of it that it waits, however busy the machine is
PARAMS = f"""
extends: {ROOT}/tests/small.yaml
prepare: {{folds: 3}}
budget: {{portfolio: FOLDER/portfolio.yaml}}
members:
  unused: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, head: {{kind: linear}}}}
predict: {{batch: 100}}
"""
PORTFOLIO = """
candidates:
  - {name: small, cost: 1, source: a test, member: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
"""
# The time is up as soon as the first fold model came home.
TIME_UP = """
from pathlib import Path
from pipelines.execution import budget_search
def stop(search):
    if list(Path({work!r}).glob("members/small-tuned/*/fold*/manifest.json")):
        raise budget_search.TimeIsUp
budget_search.Search.stop_in_time = stop
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("prepared")
    workspace = Workspace(folder)
    workspace.params.write_text(PARAMS.replace("FOLDER", str(folder)))
    (folder / "portfolio.yaml").write_text(PORTFOLIO)
    workspace.do_in_one_process("download", "prepare", "resolve")
    return workspace


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_nodes(tmp_path_factory.mktemp("nodes"), HEAD, OTHER) as cluster:
        yield cluster


def test_networks_are_trained_on_the_cluster_and_the_file_repeats_them(prepared, ray_cluster, tmp_path: Path) -> None:
    workspace = prepared.copy_to(tmp_path)
    output = workspace.do("budget", *HOURS, "--cluster", ray_cluster.address)
    kept = re.findall(r"^  (\S+) +\S+ \w+ +0\.\d+ +kept$", output, re.M)
    assert sorted(kept) == ["small-linear", "small-mlp", "small-rbf", "small-tuned"], output
    # The cluster took the fold models of the network, some on each node, and nothing else.
    assert sorted(re.findall(r"predict (\S+ fold \d): done", output)) == [f"small-tuned fold {n}" for n in range(3)]
    assert len(re.findall(r"^train small-tuned fold \d: ", output, re.M)) == 3
    assert "train small-tuned: run" not in output
    for address in (HEAD, OTHER):
        assert list((ray_cluster.folder / f"home-{address}").rglob("small/data/index.csv"))
    workspace.do_in_one_process("predict", "blend", arguments=HOURS)
    weights, file = workspace.weights(), workspace.work / BUDGET_FILE
    assert set(load_params(file).members) == set(kept)
    again = workspace.do_in_one_process("tune", "train", "predict", "blend", arguments=["--params", str(file)])
    assert "held-out rows," not in again and workspace.weights() == weights


def test_time_that_is_up_ends_the_tasks_and_the_blend_is_complete(prepared, ray_cluster, tmp_path: Path) -> None:
    workspace = prepared.copy_to(tmp_path)
    code, cluster = TIME_UP.format(work=str(workspace.work)), ("--cluster", ray_cluster.address)
    result = workspace.run("budget", *HOURS, *cluster, code=code)
    assert result.code == 0 and re.search(r"small-tuned .* stopped: the time was up", result.out), result.err
    wait_for_end()
    assert len(list(workspace.work.glob("members/small-tuned/*/fold*/manifest.json"))) == 1  # it came home, and stays
    workspace.do_in_one_process("predict", "blend", arguments=HOURS)
    assert sorted(load_params(workspace.work / BUDGET_FILE).members) == ["small-linear", "small-mlp", "small-rbf"]
    assert len(workspace.submission().splitlines()) == 451
