"""A test that changes something works on a copy of the finished world."""

from pathlib import Path

import pytest
from stages import Workspace

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A fixture here is a whole training run, which on a busy machine takes longer than any one test may."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def place(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished world, to be changed."""
    return finished.copy_to(tmp_path)
