"""Fixtures of the loopback Kaggle server, shared by the tests of `kaggle` and of `kernels`."""

import pytest
from forked_python import ServedPython, forking

from competition.files import child_process
from competition.kaggle.client import Client
from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle
from fake_kaggle.small_competition import FILES, QUICK


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
    """The messages of the client to its user."""
    return []


@pytest.fixture
def client(kaggle, home, messages, monkeypatch):
    monkeypatch.setattr(child_process, "subprocess", forking(ServedPython))
    return Client(kaggle.environment(home), QUICK, messages.append)
