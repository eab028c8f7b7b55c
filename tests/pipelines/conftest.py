"""Fixtures of the end-to-end tests: a test that changes files works on a copy of the finished workspace."""

from pathlib import Path

import pytest
from stages import Workspace

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the time limit: fixtures contain complete training runs, which are slow on a busy machine."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished workspace, which tests may change."""
    return finished.copy_to(tmp_path)
