"""The block `cluster` of the parameters, and the commands that read it."""

from pathlib import Path

import pytest
from builders import params

from competition.cluster import connection
from competition.config.errors import UserError
from competition.config.params import Needs


def test_a_member_states_only_what_differs_for_it() -> None:
    cluster = params(
        "cluster.needs.memory_gigabytes=4.0 cluster.members='{cnn: {gpus: 0.5}, small: {tpu_chips: 4}}'"
    ).cluster
    assert cluster.members == {"cnn": Needs(0.0, 0.5, 0, 4.0), "small": Needs(0.0, 0.0, 4, 4.0)}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("cluster.members='{cnm: {gpus: 1}}'", r"cluster.members.cnm: no member 'cnm'; did you mean 'cnn'"),
        ("cluster.members='{cnn: {gpu: 1}}'", r"cluster.members.cnn.gpu: unknown key; did you mean 'gpus'"),
        ("cluster.members='{cnn: 1}'", r"cluster.members.cnn: .*a block of keys was expected"),
        ("cluster.needs.tpu_chips=3", r"cluster.needs.tpu_chips: 3 was found"),
        ("cluster.needs.cpus=-1.0", r"cluster.needs.cpus: -1.0 was found"),
        ("cluster.retries=-1", r"cluster.retries: -1 was found"),
    ],
)
def test_a_wrong_value_is_an_error_before_anything_starts(sets: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        params(sets)


def test_needs_do_not_change_what_a_run_depends_on() -> None:
    from competition.config.params import stated_keys

    assert stated_keys(params("cluster.needs.gpus=1.0").members["cnn"]) == stated_keys(params().members["cnn"])


def test_without_a_cluster_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (goldfold[cluster])")
    (tmp_path / "empty.txt").touch()
    message = r"CLUSTER=auto: no Ray cluster was reached .*`ray start --head"
    with pytest.raises(UserError, match=message), connection.connected("auto", tmp_path):
        pass
