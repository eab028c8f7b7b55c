"""A kernel is started once: a push whose response was lost is searched for and never repeated."""

from functools import partial

import pytest
from fake_kaggle.parts import Run

from competition.config.errors import UserError
from competition.kaggle.attempts import UnknownOutcome
from competition.kaggle.errors import KaggleError
from competition.kernels import api as kernels
from competition.kernels import push as kernel_push
from competition.kernels.api import Kernel
from competition.kernels.push import PushIntent

KERNEL = Kernel("ada", "goldfold-flowers", "", internet=False, competition="flowers", datasets=(), seconds=600)
NAME = "ada/goldfold-flowers"


@pytest.fixture(autouse=True)
def kernels_run_without_end(kaggle):
    kaggle._run_kernel = lambda run: setattr(run, "status", "RUNNING")


@pytest.fixture
def state(tmp_path):
    return tmp_path / "run.json"


def push(client, state, run="run-2"):
    previous = kernel_push.newest_version(client, "ada", "goldfold-flowers")
    intent = PushIntent(run, False, ("work/*",), "ada", "goldfold-flowers", 0, "", previous)
    source = f"print('{run}', 'goldfold-output.json')"
    return kernel_push.push_once(client, partial(kernels.push, client, KERNEL, source, True), intent, state, 300.0)


def test_another_notebook_of_the_same_name_gets_no_version_unless_requested(kaggle, client):
    kaggle.kernels[NAME].append(Run({"text": "import pandas"}, kaggle.folder))
    with pytest.raises(UserError, match=r"is another notebook, .* SET=\"kernel.slug=...\", or AGAIN=1"):
        kernel_push.newest_version(client, "ada", "goldfold-flowers")
    assert kernel_push.newest_version(client, "ada", "goldfold-flowers", may_be_other=True) == 1


def test_the_intent_is_stored_before_the_push_and_after_a_lost_response_the_running_version_is_searched_for(
    kaggle, client, state, monkeypatch
):
    states, save_kernel = [], kaggle.save_kernel
    monkeypatch.setattr(kaggle, "save_kernel", lambda ask: states.append(state.read_text()) or save_kernel(ask))
    intent = push(client, state, run="run-1")
    assert '"run": "run-1"' in states[0] and '"version": 0' in states[0]
    assert (intent.version, kernel_push.read_push_intent(state)) == (1, intent)
    kaggle.faults["SaveKernel"] = ["lost"]
    kaggle.unlisted_looks = 1
    intent = push(client, state)
    assert (intent.previous, intent.version) == (1, 2)
    assert len(kaggle.kernels[NAME]) == kaggle.count("SaveKernel") == 2
    assert kernel_push.read_push_intent(state) == intent


def test_a_version_pushed_by_somebody_else_is_not_mistaken_for_this_push(kaggle, client, state):
    push(client, state, run="run-1")
    other = kaggle.kernels[NAME][0]
    kaggle.faults["SaveKernel"] = ["500"]  # the push never arrived, but the client cannot know that
    # previous: as if the other version was made after this machine looked for the newest one.
    intent = PushIntent("run-2", False, (), "ada", "goldfold-flowers", 0, "", previous=0)
    with pytest.raises(UnknownOutcome, match="`make kernel AGAIN=1` pushes it once more"):
        kernel_push.push_once(client, partial(kernels.push, client, KERNEL, "print('run-2')"), intent, state, 0.1)
    assert (kaggle.kernels[NAME], kaggle.count("SaveKernel")) == ([other], 2)
    assert kernel_push.read_push_intent(state).version == 0  # the next `make kernel` searches again
    with pytest.raises(UnknownOutcome):
        kernel_push.find_lost_push(client, kernel_push.read_push_intent(state), state, 0.1)


def test_a_short_rate_limit_is_waited_for(kaggle, client, state):
    kaggle.faults["SaveKernel"] = ["429:1"]
    assert push(client, state).version == 1
    assert len(kaggle.kernels[NAME]) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("429:900", r"nothing was sent; run `make kernel` again in 15 minutes, after \d\d:"),
        ("400:The title is taken", "The title is taken"),
        ("403", "403"),
    ],
)
def test_a_rejected_push_leaves_no_intent_and_is_not_searched_for(kaggle, client, state, fault, message):
    kaggle.faults["SaveKernel"] = [fault] * 9
    with pytest.raises(KaggleError, match=message):
        push(client, state)
    assert (kaggle.count("SaveKernel"), kaggle.count("GetKernel"), state.exists()) == (1, 1, False)
