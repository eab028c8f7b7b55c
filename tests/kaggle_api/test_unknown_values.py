"""Answers of Kaggle with missing, null, unknown and new values: shown as they came, and work goes on."""

import copy

import pytest
from fake_kaggle.parts import Run
from hypothesis import given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.kaggle import child_actions as child
from competition.kaggle import child_requests, download, leaderboard, submit
from competition.kernels import api as kernels

ROW = {"ref": 7, "date": "2026-01-01T00:30:00.5+05:30", "status": "COMPLETE", "publicScore": "0.5", "teamName": "Ada"}
# Method -> (an answer of Kaggle, what reads it from a client or an api).
ANSWERS = {
    "GetCompetition": (
        {"title": "Flowers", "userHasEntered": True, "deadline": "2030-01-01T00:00:00Z", "maxDailySubmissions": 5},
        lambda client: download.require_access(client, "flowers").summary,
    ),
    "GetSubmissionLimits": (
        {"numToday": 1, "numTotal": 1, "numAllowedNow": 4},
        lambda client: submit.limits(client, "flowers"),
    ),
    "GetAcceleratorQuotaStatistics": (
        {"tpuQuota": {"timeUsed": "3600.5s", "totalTimeAllowed": "72000s"}, "quotaRefreshTime": "2026-01-10T00:00:00Z"},
        lambda client: kernels.quota(client).summary,
    ),
    "GetKernelSessionStatus": (
        {"status": "RUNNING", "failureMessage": ""},
        lambda client: kernels.status(client, "ada", "kernel", 1),
    ),
    "GetLeaderboard": (
        {"submissions": [ROW, ROW], "userRank": 2, "teamCount": 3},
        lambda client: leaderboard.read(client, "flowers", 5),
    ),
    "GetSubmission": (ROW, submit.parse_submission),
    "ListSubmissions": (
        {"submissions": [ROW]},
        lambda api: [submit.parse_submission(row) for row in child.submissions(api, ignore, "flowers", False)],
    ),
    "GetKernel": (
        {"metadata": {"currentVersionNumber": 2}, "blob": {"source": "print('x')"}},
        lambda api: child.kernel_source(api, ignore, {"versionLabel": None}, "x"),
    ),
}
ODD = [None, "", "RESCORING", "NaN", "1e999", "12", -1, 7.5, True, [], [None], {}, {"a": 1}, "2026-01-01T05:30:00"]


def ignore(*_, **__):
    """Emit nothing."""


@pytest.mark.parametrize("method", ANSWERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_field_of_an_answer_can_stop_an_action(method, data):
    def changed(value):
        if isinstance(value, list):
            return [changed(entry) for entry in value] + data.draw(st.lists(st.sampled_from(ODD), max_size=1))
        if not isinstance(value, dict):
            return value
        value = {key: changed(each) for key, each in value.items()} | {"newField": {"of": "a later version"}}
        for key in data.draw(st.lists(st.sampled_from(sorted(value)), max_size=4, unique=True)):
            value[key] = data.draw(st.sampled_from(ODD))
        return value

    answer, read = ANSWERS[method]
    answer = changed(copy.deepcopy(answer))
    with pytest.MonkeyPatch.context() as patch:
        for module in (download, submit, kernels, leaderboard, child, child_requests):
            patch.setattr(module, "call", lambda *_, **__: answer)
        try:
            read(answer if method == "GetSubmission" else None)
        except UserError as error:
            assert "rules of flowers are not accepted" in str(error)


@pytest.fixture
def api(kaggle, home, monkeypatch):
    """A client of the unmodified package in this process that uses the server."""
    for name, value in kaggle.environment(home, KAGGLE_CONFIG_DIR=str(home)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KAGGLE_API_TOKEN", raising=False)
    from kaggle.api.kaggle_api_extended import KaggleApi

    (api := KaggleApi()).authenticate()
    with api.build_kaggle_client() as client:
        yield client


def test_null_rows_text_numbers_and_bad_dates_do_not_hide_the_other_submissions(kaggle, api):
    rows = [None, {**ROW, "ref": "8", "date": "yesterday"}, {**ROW, "ref": "nine", "status": "RESCORING"}, ROW]
    kaggle.list_submissions = lambda request: {"submissions": rows}
    listed = [submit.parse_submission(row) for row in child.submissions(api, ignore, "flowers", newest=False)]
    assert [each.ref for each in listed] == ["", "8", "nine", "7"]
    assert [each.date for each in listed] == ["", "yesterday", "2025-12-31T19:00:00", "2025-12-31T19:00:00"]
    assert [each.status for each in listed] == ["PENDING", "COMPLETE", "RESCORING", "COMPLETE"]
    assert not listed[2].is_finished and submit.newest_ref(["7", "8", "10"]) == "10"


LISTED = [{"ref": ref, "status": "COMPLETE"} for ref in range(250, 0, -1)]


def by_token(request):
    start = int(request.get("pageToken") or 0)
    return {"submissions": LISTED[start : start + 100], "nextPageToken": str(start + 100) if start < 200 else ""}


@pytest.mark.parametrize("page", [by_token, lambda _: {"submissions": LISTED, "nextPageToken": "x"}])
def test_a_list_of_submissions_is_read_to_its_end_and_each_is_listed_once(kaggle, api, page):
    kaggle.list_submissions = page
    assert [row["ref"] for row in child.submissions(api, ignore, "flowers", newest=False)] == [*range(250, 0, -1)]
    assert child.submissions(api, ignore, "flowers", newest=True)[0]["ref"] == 250


def test_a_kernel_whose_status_is_unknown_is_waited_for(kaggle, client, messages):
    run = Run({"text": ""}, kaggle.folder, "PREEMPTED", log=["epoch 1\n"])
    kaggle.kernels["ada/kernel"].append(run)
    version, log = kernels.KernelVersion("ada", "kernel", 1, ""), []
    outcome = kernels.follow(client, version, log.append, 0.1, 0.05)
    assert (outcome.status, log) == ("PREEMPTED", ["epoch 1\n"])
