"""One world, trained once per process; a test that changes something works on a copy."""

from pathlib import Path

import pytest
from stages import MAIN_JOB, Place, new_place

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A fixture here is a whole training run, which on a busy machine takes longer than any one test may."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The whole main job done. Not to be changed."""
    place = new_place(tmp_path_factory.mktemp("finished"))
    for stage in MAIN_JOB:
        place.do(stage)
    return place


@pytest.fixture
def place(finished: Place, tmp_path: Path) -> Place:
    """A copy of the finished world, to be changed."""
    return finished.copy_to(tmp_path)
