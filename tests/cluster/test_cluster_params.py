"""The block `cluster` of the parameters, and the commands that read it."""

from pathlib import Path

import pytest
from builders import params

from competition.cluster import connection
from competition.config.errors import UserError


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
