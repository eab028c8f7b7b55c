"""A kernel is started once: a push whose answer was lost is found again, and never repeated."""

import pytest

from competition.kaggle.attempts import UnknownOutcome
from competition.kaggle.client import KaggleError
from competition.kernels import push as kernel_push
from competition.kernels.api import Kernel
from competition.kernels.push import PushIntent

KERNEL = Kernel("ada", "goldfold-flowers", "", internet=False, competition="flowers", datasets=(), seconds=600)
NAME = "ada/goldfold-flowers"


@pytest.fixture(autouse=True)
def kernels_that_only_run(kaggle):
    kaggle._run_kernel = lambda run: setattr(run, "status", "RUNNING")


@pytest.fixture
def state(tmp_path):
    return tmp_path / "run.json"


def push(client, state, run="run-2", lag=300.0):
    previous = kernel_push.newest_version(client, "ada", "goldfold-flowers")
    intent = PushIntent(run, False, ("work/*",), "ada", "goldfold-flowers", 0, "", previous)
    return kernel_push.push_once(client, KERNEL, f"print('{run}')", True, intent, state, lag)


def test_the_intent_is_on_the_disk_before_the_push_and_the_version_after_it(kaggle, client, state, monkeypatch):
    noted = []
    save_kernel = kaggle.save_kernel
    monkeypatch.setattr(
        kaggle, "save_kernel", lambda ask: noted.append(state.read_text() if state.exists() else "") or save_kernel(ask)
    )
    under_way = push(client, state)
    assert '"run": "run-2"' in noted[0] and '"version": 0' in noted[0]
    assert (under_way.version, kernel_push.read_push_intent(state)) == (1, under_way)


@pytest.mark.parametrize("fault", ["after:504", "lost"])
def test_a_lost_answer_is_followed_by_a_search_for_the_version_that_runs(kaggle, client, state, fault):
    push(client, state, run="run-1")
    kaggle.faults["SaveKernel"] = [fault]
    kaggle.unlisted_looks = 2
    under_way = push(client, state)
    assert (under_way.previous, under_way.version) == (1, 2)
    assert len(kaggle.kernels[NAME]) == kaggle.count("SaveKernel") == 2
    assert kernel_push.read_push_intent(state) == under_way


def test_a_version_that_somebody_else_pushed_is_not_taken_for_ours(kaggle, client, state):
    push(client, state, run="run-1")
    other = kaggle.kernels[NAME][0]
    kaggle.faults["SaveKernel"] = ["500"]  # it never arrived, but nobody can know that
    intent = PushIntent("run-2", False, (), "ada", "goldfold-flowers", 0, "", previous=0)
    with pytest.raises(
        UnknownOutcome, match=r"unknown whether Kaggle runs .*`make kernel AGAIN=1` pushes it once more"
    ):
        kernel_push.push_once(client, KERNEL, "print('run-2')", False, intent, state, 0.1)
    assert (kaggle.kernels[NAME], kaggle.count("SaveKernel")) == ([other], 2)
    assert kernel_push.read_push_intent(state).version == 0  # the next `make kernel` looks again
    with pytest.raises(UnknownOutcome):
        kernel_push.find_lost_push(client, kernel_push.read_push_intent(state), state, 0.1)


def test_a_rate_limit_is_waited_for_because_nothing_was_started(kaggle, client, state, messages):
    kaggle.faults["SaveKernel"] = ["429:1", "429"]
    assert push(client, state).version == 1
    assert len(kaggle.kernels[NAME]) == 1
    assert "try 2 of 3 in 1 s" in messages[0]


def test_a_long_rate_limit_ends_at_once_and_leaves_nothing_to_go_on_with(kaggle, client, state):
    kaggle.faults["SaveKernel"] = ["429:900"] * 9
    with pytest.raises(KaggleError, match=r"nothing was sent; run `make kernel` again in 15 minutes, after \d\d:"):
        push(client, state)
    assert (kaggle.count("SaveKernel"), state.exists()) == (1, False)


@pytest.mark.parametrize("fault", ["400:The title is taken", "401", "403"])
def test_a_rejected_push_is_not_looked_for(kaggle, client, state, fault):
    kaggle.faults["SaveKernel"] = [fault]
    with pytest.raises(KaggleError):
        push(client, state)
    assert (kaggle.count("GetKernel"), state.exists()) == (1, False)
