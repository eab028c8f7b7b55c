import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # the stand-in server is code of the tests, not of the project

from fake_kaggle.server import Contest, FakeKaggle

from competition.remote.kaggle_client import Client, Patience

FILES = {
    "sample_submission.csv": b"id,label\na,0\nb,0\n",
    "train/01.tfrec": bytes(range(256)) * 3000,
    "test/01.tfrec": bytes(reversed(range(256))) * 3000,
}
QUICK = Patience(tries=3, first_wait=0.05, longest_wait=3.0, stall=8.0)


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
