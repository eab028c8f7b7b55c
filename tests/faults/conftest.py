"""Fixtures of the fault tests. Long ones have the marker `soak`: `make soak` runs them, `make test` does not."""

from pathlib import Path

import pytest
from stages import Workspace

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(7200 if item.get_closest_marker("soak") else 900))


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished workspace, which tests may change."""
    return finished.copy_to(tmp_path / "workspace")
