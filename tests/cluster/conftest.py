"""Two Ray nodes with separate folders, and a prepared competition."""

import importlib.util
import sys

import pytest
from ray_nodes import ray_nodes

NO_RAY = importlib.util.find_spec("ray") is None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = (
        "Ray is not installed (goldfold[cluster])" if NO_RAY else "Ray nodes on several loopback addresses need Linux"
    )
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()) and (NO_RAY or sys.platform != "linux"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def ray_cluster(tmp_path):
    with ray_nodes(tmp_path) as cluster:
        yield cluster
