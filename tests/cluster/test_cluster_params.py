"""The block `cluster` of the parameters, and the commands that read it."""

from pathlib import Path

import pytest
from builders import ROOT, params

from competition.budget.parameters import file_text, with_members
from competition.cluster import connection
from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.images.batch_threads import cores
from competition.training.device import Device
from pipelines.execution.cluster import slots_of


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("cluster.members='{cnm: {gpus: 1}}'", r"cluster.members.cnm: no member 'cnm'; did you mean 'cnn'"),
        ("cluster.members='{cnn: {gpu: 1}}'", r"cluster.members.cnn.gpu: unknown key; did you mean 'gpus'"),
        ("cluster.needs.tpu_chips=3", r"cluster.needs.tpu_chips: 3 was found"),
        ("cluster.retries=-1", r"cluster.retries: -1 was found"),
    ],
)
def test_a_wrong_value_is_an_error_before_anything_starts(sets: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        params(sets)


def test_without_a_cluster_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (goldfold[cluster])")
    (tmp_path / "empty.txt").touch()
    message = r"CLUSTER=127\.0\.0\.1:9: no Ray cluster was reached .*`ray start --head"
    with pytest.raises(UserError, match=message), connection.connected("127.0.0.1:9", tmp_path):
        pass


def test_the_file_of_a_budget_keeps_what_its_members_need_of_a_cluster(tmp_path: Path) -> None:
    stated = params("cluster.members='{cnn: {gpus: 1}}'")
    kept = with_members(stated, {"cnn": stated.members["cnn"]}, ("cnn",))
    (tmp_path / "budget.yaml").write_text(file_text(kept, ROOT / "params.yaml", (), {}, []))
    assert load_params(tmp_path / "budget.yaml").cluster.members == stated.cluster.members == kept.cluster.members
    assert not with_members(stated, {"other": stated.members["cnn"]}, ("other",)).cluster.members


@pytest.mark.parametrize(
    ("kind", "needs", "machines", "expected"),
    [
        ("cpu", {}, [{"CPU": 2.0}, {"CPU": 4.0}, {"CPU": 0.0}], (3, cores() / 2)),  # a head that takes no work
        ("cpu", {"cpus": 0.5}, [{"CPU": 2.0}], (4, cores() / 0.5)),
        ("gpu", {"gpus": 0.1}, [{"CPU": 8.0, "GPU": 1.0}], (10, 40.0)),
        ("gpu", {"gpus": 8.0}, [{"CPU": 8.0, "GPU": 8.0}], (1, 1.0)),  # more than this machine has
        ("cpu", {"gpus": 1.0}, [{"CPU": 8.0}], (1, 1.0)),  # an autoscaler may start a machine
    ],
)
def test_fold_models_at_once_and_their_speed(kind, needs, machines, expected) -> None:
    cluster = params(f"cluster.members='{{cnn: {needs}}}'").cluster
    empty = dict.fromkeys(connection.RESOURCES, 0.0)
    there = [connection.Machine(str(n), f"10.0.0.{n}", {**empty, **total}) for n, total in enumerate(machines)]
    slots, slowdown = slots_of(cluster, "cnn", there, Device(kind, 4, None, "", "tensorflow"))
    assert (slots, slowdown) == (expected[0], max(expected[1], 1.0))
