import pytest
from ray_nodes import ray_nodes


@pytest.fixture
def ray_cluster(tmp_path):
    """Ray nodes with separate folders."""
    with ray_nodes(tmp_path) as cluster:
        yield cluster
