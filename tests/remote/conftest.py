import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # the stand-in server is code of the tests, not of the project

from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle
from fake_kaggle.world import FILES, QUICK

from competition.remote.kaggle_client import Client


@pytest.fixture
def kaggle(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with FakeKaggle(folder) as server:
        server.contests["flowers"] = Contest(FILES)
        yield server


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def said():
    """What a client told its user."""
    return []


@pytest.fixture
def client(kaggle, home, said):
    return Client(kaggle.environment(home), QUICK, said.append)
