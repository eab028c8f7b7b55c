"""One world, trained once per process; a test that changes something works on a copy."""

from pathlib import Path

import pytest
from stages import MAIN_JOB, Place, new_place


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
