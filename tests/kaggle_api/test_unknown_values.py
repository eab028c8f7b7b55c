"""Answers of Kaggle with missing, null, unknown and new values: shown as they came, and work goes on."""

import json
from pathlib import Path

import pytest
import requests
from fake_kaggle.parts import Contest, Run
from fake_kaggle.server import FakeKaggle
from fake_kaggle.small_competition import FILES, RULES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.kaggle import answers, child_competition, child_kernel, download, submit
from competition.kaggle.child_failure import ReportedFailure, message_of
from competition.kernels import api as kernels
from competition.submission import delivery, ledger

SUBMITTED = {"competitionName": "flowers", "submissionDescription": f"goldfold {'a' * 16}"}
METHODS = {
    "get_competition": ("competition", {"slug": "flowers"}, lambda value: download.State(**value).summary),
    "list_data_files": ("listing", {"slug": "flowers"}, lambda value: download.Listing(**value).total),
    "list_submissions": ("submissions", {"slug": "flowers"}, lambda value: [submit.parse_submission(v) for v in value]),
    "get_submission": ("submission", {"ref": "1001"}, submit.parse_submission),
    "get_submission_limits": ("limits", {"slug": "flowers"}, lambda value: submit.Limits(**value)),
    "get_leaderboard": ("leaderboard", {"slug": "flowers", "rows": 5}, lambda value: value["rows"]),
    "get_accelerator_quota_statistics": ("quota", {}, lambda value: value),
    "get_kernel_session_status": ("kernel_status", {"kernel": "ada/kernel", "version": 1}, lambda value: value),
    "get_kernel": ("kernel_source", {"kernel": "ada/kernel", "version": 0, "phrase": "x"}, lambda value: value),
}
ODD = [
    None,
    "",
    "RESCORING",
    "NaN",
    "1e999",
    "12",
    -1,
    7.5,
    True,
    [],
    [None],
    {},
    {"a": 1},
    "2026-01-01T05:30:00+05:30",
]


@pytest.fixture(scope="module")
def server_and_api(tmp_path_factory):
    """The loopback server and an unmodified KaggleApi of this process that uses it."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch, FakeKaggle(folder) as server:
        for name, value in {**server.environment(folder), "KAGGLE_CONFIG_DIR": str(folder)}.items():
            patch.setenv(name, value)
        patch.delenv("KAGGLE_API_TOKEN", raising=False)
        from kaggle.api.kaggle_api_extended import KaggleApi

        api = KaggleApi()
        api.authenticate()
        server.contests["flowers"] = Contest(FILES, leaderboard=(("Ada", "0.9"), ("Alan", "0.8")))
        server._submitted(SUBMITTED, b"1", "x.csv")
        server.submissions[0]["ref"] = 1001
        server.kernels["ada/kernel"].append(Run({"text": "print('x')"}, Path(folder), "RUNNING"))
        yield server, api


def run_action(server, api, method, answer):
    """The value of an action as the parent process reads it, with another answer of the server."""
    action, arguments, parse = METHODS[method]
    module = child_competition if hasattr(child_competition, action) else child_kernel
    setattr(server, method, lambda request: answer)
    try:
        return parse(json.loads(json.dumps(getattr(module, action)(api, lambda *_, **__: None, **arguments))))
    finally:
        delattr(server, method)


REQUEST = {"competitionName": "flowers", "ref": 1001, "userName": "ada", "kernelSlug": "kernel"}


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_field_of_an_answer_can_stop_an_action(server_and_api, method, data):
    def changed(value):
        if isinstance(value, list):
            return [changed(entry) for entry in value] + data.draw(st.lists(st.sampled_from(ODD), max_size=1))
        if not isinstance(value, dict):
            return value
        value = {key: changed(each) for key, each in value.items()} | {"newField": {"of": "a later version"}}
        for key in data.draw(st.lists(st.sampled_from(sorted(value)), max_size=4, unique=True)):
            if (odd := data.draw(st.sampled_from([*ODD, "missing"]))) == "missing" or key == "nextPageToken":
                del value[key]
            else:
                value[key] = odd
        return value

    server, api = server_and_api
    run_action(server, api, method, changed(getattr(server, method)(REQUEST)))


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"message": null}', '{"error": null}', '{"error": {"code": 5}}', "1e"]
)
def test_an_error_without_a_message_is_described_by_its_status(body):
    answer = requests.Response()
    answer.status_code, answer.reason, answer.url, answer._content = 404, "Not Found", "http://x/y?sig=1", body.encode()
    with pytest.raises(requests.HTTPError) as error:
        answer.raise_for_status()
    assert message_of(error.value, answer) == "404 Client Error: Not Found"


@pytest.mark.parametrize("answer", [None, [], "text", 7])
def test_an_answer_that_is_no_object_is_reported_as_such(server_and_api, answer):
    with pytest.raises(ReportedFailure, match="it is no JSON object but") as failure:
        run_action(*server_and_api, "get_submission_limits", answer)
    assert failure.value.kind == "answer"


def test_null_rows_text_numbers_and_bad_dates_do_not_hide_the_other_submissions(server_and_api):
    good = {"ref": 7, "date": "2026-01-01T00:30:00.5+05:30", "status": "COMPLETE", "publicScore": "0.5"}
    rows = [None, {**good, "ref": "8", "date": "yesterday"}, {**good, "ref": "nine", "status": "RESCORING"}, good]
    submissions = run_action(*server_and_api, "list_submissions", {"submissions": rows})
    assert [(each.ref, each.date, each.status) for each in submissions] == [
        ("8", "yesterday", "COMPLETE"),
        ("nine", "2025-12-31T19:00:00", "RESCORING"),
        ("7", "2025-12-31T19:00:00", "COMPLETE"),
        ("", "", "UNREADABLE"),
    ]
    assert (submissions[1].is_finished, submissions[1].error) == (
        False,
        "unknown answer of Kaggle: its status is 'RESCORING'",
    )
    assert submit.newest_ref([each.ref for each in submissions[:3:2]]) == "8"


@pytest.mark.parametrize("score", ["NaN", "inf", "-Infinity", "1e999", "n/a"])
def test_a_score_that_is_no_finite_number_is_recorded_in_words(server_and_api, tmp_path, score):
    fields = {"ref": 7, "status": "COMPLETE", "publicScore": score}
    submission = run_action(*server_and_api, "get_submission", fields)
    assert (submission.public, submission.error) == (None, f"unknown answer of Kaggle: its public score is {score!r}")
    delivery.record_result(tmp_path / "ledger.jsonl", "a" * 64, "flowers", submission)
    (event,) = ledger.read(tmp_path / "ledger.jsonl").events
    assert (event.what, event.ref, event.public_score, event.error) == ("scored", "7", None, submission.error)


def test_a_list_of_submissions_is_read_to_its_end_by_tokens_or_by_page_numbers(server_and_api):
    rows = [{"ref": ref, "status": "COMPLETE"} for ref in range(250, 0, -1)]

    def by_token(request):
        start = int(request.get("pageToken") or 0)
        return {
            "submissions": rows[start : start + 100],
            **({"nextPageToken": str(start + 100)} if start < 200 else {}),
        }

    def by_number(request):
        start = 20 * (request.get("page", 1) - 1)
        return {"submissions": rows[start : start + 20]}

    server, api = server_and_api
    for pages in (by_token, by_number, lambda request: {"submissions": rows}):
        server.list_submissions = pages
        try:
            read = child_competition.submissions(api, lambda *_, **__: None, "flowers")
            newest = child_competition.submissions(api, lambda *_, **__: None, "flowers", newest=True)
        finally:
            del server.list_submissions
        assert [int(row["ref"]) for row in read] == list(range(250, 0, -1))
        assert newest[0]["ref"] == "250"


def test_files_of_unknown_size_are_downloaded(kaggle, client, tmp_path):
    kaggle.contests["flowers"].listed = dict.fromkeys(FILES)  # null
    download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES)
    assert (tmp_path / "raw" / "train" / "01.tfrec").read_bytes() == FILES["train/01.tfrec"]


@pytest.mark.parametrize("row", [None, {"name": None, "totalBytes": 3}])
def test_files_that_the_listing_does_not_name_are_unpacked_as_well(
    kaggle, client, messages, tmp_path, monkeypatch, row
):
    monkeypatch.setattr(kaggle, "list_data_files", lambda request: {"files": [{"name": "train/01.tfrec"}, row]})
    download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES)
    assert (tmp_path / "raw" / "test" / "01.tfrec").read_bytes() == FILES["test/01.tfrec"]
    assert "Kaggle: its listing is incomplete (1 file); the archive's others are unpacked as well" in messages


def test_a_submission_whose_status_is_unknown_is_waited_for_and_then_reported(kaggle, client):
    kaggle._submitted({"competitionName": "flowers"}, b"1", "x.csv")
    shown = kaggle._shown
    kaggle._shown = lambda submission: {**shown(submission), "status": "RESCORING", "publicScore": None}
    ref, waits = str(kaggle.submissions[0]["ref"]), []
    submission = delivery.follow(client, "flowers", ref, delivery.ScoreWait(4.0, 0.1, 0.1, waits.append))
    assert (submission.status, submission.public, bool(waits)) == ("RESCORING", None, True)


def test_missing_limits_do_not_stop_a_submission_and_the_total_limit_has_its_own_words(kaggle, client, monkeypatch):
    monkeypatch.setattr(kaggle, "get_submission_limits", lambda request: {"numToday": 3})
    assert submit.refuse_when_used_up(client, "flowers").left is None
    used_up = {"numToday": 0, "numTotal": 40, "numAllowedNow": 0, "limitedByTotal": True}
    monkeypatch.setattr(kaggle, "get_submission_limits", lambda request: used_up)
    with pytest.raises(
        UserError, match=r"\(40 were made\): the competition limits their total number, a new day adds none"
    ):
        submit.refuse_when_used_up(client, "flowers")


def test_a_quota_without_its_fields_is_unknown(kaggle, client, monkeypatch):
    answer = {"gpuQuota": {"totalTimeAllowed": "108000s"}, "quotaRefreshTime": "2026-01-10T02:00:00+02:00"}
    monkeypatch.setattr(kaggle, "get_accelerator_quota_statistics", lambda request: answer)
    quota = kernels.quota(client)
    assert (quota.left("TPU"), quota.left("GPU"), quota.refresh) == (None, None, "2026-01-10T00:00:00")
    assert quota.summary("TPU") == "TPU: Kaggle does not say how many hours are left"
    assert quota.summary("GPU") == "GPU: Kaggle does not say how many hours of 30.0 h are left"


def test_a_kernel_whose_status_is_unknown_is_waited_for(kaggle, client, messages):
    run = Run({"text": ""}, kaggle.folder, "PREEMPTED", log=["epoch 1\n"])
    kaggle.kernels["ada/kernel"].append(run)
    version, log = kernels.KernelVersion("ada", "kernel", 1, ""), []
    outcome = kernels.follow(client, version, log.append, 60, 0.05, longest_unknown=0.1)
    assert (outcome.status, log) == ("PREEMPTED", ["epoch 1\n"])
    assert messages == ["kernel: Kaggle's status PREEMPTED is not known here; waiting for another one"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-01-31T23:30:00-05:00", "2026-02-01T04:30:00"),
        ("2026-01-31T23:30:00Z", "2026-01-31T23:30:00"),
        ("2026-01-31", "2026-01-31T00:00:00"),
        ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00+14:00"),
        ("soon", "soon"),
        (None, ""),
    ],
)
def test_times_are_shown_in_utc_and_others_as_they_came(value, text):
    assert answers.utc_time(value) == text
