import pytest
from preloaded import ServedPython, forking

from competition.files import child_process
from competition.kaggle.client import Client
from fake_kaggle.parts import FILES, QUICK, Contest
from fake_kaggle.server import FakeKaggle


@pytest.fixture
def kaggle(tmp_path):
    (folder := tmp_path / "server").mkdir()
    with FakeKaggle(folder) as server:
        server.contests["flowers"] = Contest(FILES)
        yield server


@pytest.fixture
def home(tmp_path):
    (folder := tmp_path / "home").mkdir()
    return folder


@pytest.fixture
def messages():
    return []


@pytest.fixture
def client(kaggle, home, messages, monkeypatch):
    monkeypatch.setattr(child_process, "subprocess", forking(ServedPython))
    return Client(kaggle.environment(home), QUICK, messages.append)
