"""The client and server faults: waiting times, messages and files left on disk."""

import dataclasses
import random
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from fake_kaggle.parts import Contest
from fake_kaggle.small_competition import QUICK, RULES

from competition.kaggle import download
from competition.kaggle.client import Client, ask
from competition.kaggle.errors import KaggleError

ROOT = Path(__file__).parents[2]


def test_an_expired_token_is_reported_well_before_the_stall_limit(kaggle, home, messages, tmp_path):
    policy = dataclasses.replace(QUICK, stall=200.0)
    client = Client(kaggle.environment(home, KAGGLE_API_TOKEN="KGAT_expired"), policy, messages.append)
    del client.environment["KAGGLE_USERNAME"], client.environment["KAGGLE_KEY"]
    started = time.monotonic()
    with pytest.raises(KaggleError, match="Kaggle does not accept the credential from KAGGLE_API_TOKEN") as user_error:
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES)
    assert time.monotonic() - started < 150  # seconds; the stall limit is 200
    assert user_error.value.kind == "credentials"
    assert messages == []


def in_an_hour():
    return format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)


@pytest.mark.parametrize("retry_after", ["3600", in_an_hour])
@pytest.mark.parametrize("action", ["competition", "submit"])
def test_a_long_retry_after_ends_the_call_with_the_time_of_the_next_attempt(
    kaggle, client, tmp_path, action, retry_after
):
    header = retry_after() if callable(retry_after) else retry_after
    kaggle.faults["GetCompetition"] = kaggle.faults["StartSubmissionUpload"] = [f"429:{header}"] * 9
    (tmp_path / "s.csv").write_text("id,label\n")
    arguments = {"path": str(tmp_path / "s.csv"), "message": ""} if action == "submit" else {}
    with pytest.raises(KaggleError, match=r"run this again in \d\d minutes, after \d\d:\d\d UTC") as user_error:
        ask(client, action, {"slug": "flowers", **arguments}, "flowers", once=action == "submit")
    assert 3500 < user_error.value.retry_after <= 3600
    assert user_error.value.status == 429
    assert sum(method in {"GetCompetition", "StartSubmissionUpload"} for method, _ in kaggle.calls) == 1


@pytest.mark.parametrize("header", ["inf", "nan", "-1", "soon", "1e999"])
def test_a_retry_after_without_meaning_is_ignored(kaggle, client, header):
    kaggle.faults["GetCompetition"] = [f"429:{header}"]
    assert download.state(client, "flowers").title == "Flowers"


def test_a_retry_after_date_is_honoured(kaggle, client, messages):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=2.5), usegmt=True)
    kaggle.faults["GetCompetition"] = [f"429:{date}"]
    assert download.state(client, "flowers").title == "Flowers"
    assert messages in ([f"Kaggle: try 2 of 3 in {n} s: too many requests"] for n in (0, 1, 2))


def test_retry_messages_have_one_format_and_no_advice(kaggle, client, messages):
    kaggle.faults["GetCompetition"] = ["500", "429"]
    download.state(client, "flowers")
    assert messages == [
        "Kaggle: try 2 of 3 in 0 s: its server failed with status 500 (error 500)",
        "Kaggle: try 3 of 3 in 0 s: too many requests",
    ]


def test_repeated_connection_resets_are_reported_as_such(kaggle, client, messages, tmp_path):
    kaggle.faults["archive"] = ["reset"] * 9
    with pytest.raises(KaggleError, match=r"connection to Kaggle failed after 3 tries \(connection reset\)"):
        download.download(client, "flowers", tmp_path, RULES)
    assert messages == [f"Kaggle: try {n} of 3 in 0 s: connection reset" for n in (2, 3)]


def test_interruptions_that_make_progress_do_not_use_up_the_tries(kaggle, client, tmp_path):
    kaggle.contests["flowers"] = Contest({"big": random.Random(0).randbytes(4_000_000)})
    # Each try receives half of the remaining bytes; QUICK has 3 tries.
    kaggle.faults["archive"] = ["cut"] + ["", "cut"] * 4
    download.download(client, "flowers", tmp_path, RULES)
    assert (tmp_path / "flowers.zip").read_bytes() == kaggle.contests["flowers"].archive


@pytest.mark.parametrize(
    ("proxy", "message"),
    [
        ("http://127.0.0.1:9", "the proxy did not answer"),
        ("http://proxy.invalid:3128", "the proxy did not answer"),
        ("", "connection refused"),  # http://localhost, without a server
    ],
)
def test_a_network_error_message_contains_no_raw_exception_text(kaggle, client, proxy, message):
    client.environment["HTTP_PROXY"] = proxy
    with pytest.raises(KaggleError, match=f"connection to Kaggle failed after 3 tries .{message}") as user_error:
        download.state(client, "flowers")
    assert not any(
        fragment in str(user_error.value) for fragment in ("HTTPConnectionPool", "urllib3", "object at", "Errno")
    )


def test_the_message_about_a_damaged_archive_does_not_name_removed_files(kaggle, client, messages, tmp_path):
    kaggle.faults["archive"] = ["flip"]
    download.download(client, "flowers", tmp_path, RULES)
    assert len(messages) == 1
    assert "the archive of flowers is damaged" in messages[0] and "downloading it again" in messages[0]
    assert "remove" not in messages[0] and ".parts" not in messages[0]


def test_the_progress_bar_has_the_total_of_each_step(kaggle, client, tmp_path):
    progress_by_step = {}
    download.fetch(
        client,
        "flowers",
        tmp_path / "raw",
        tmp_path / "cache",
        RULES,
        lambda step, *n: progress_by_step.setdefault(step, []).append(n),
    )
    contest = kaggle.contests["flowers"]
    file_bytes, archive_bytes = sum(map(len, contest.files.values())), len(contest.archive)
    assert list(progress_by_step) == ["downloading", "checking", "unpacking"]
    assert progress_by_step["downloading"][-1] == (archive_bytes, archive_bytes)
    assert progress_by_step["checking"][-1] == progress_by_step["unpacking"][-1] == (file_bytes, file_bytes)


HIDDEN = {"setup.py": b"print('not listed')\n", "huge.bin": bytes(3_000_000)}


def test_files_outside_the_listing_are_left_out_and_reported(kaggle, client, messages, tmp_path):
    files = dict(kaggle.contests["flowers"].files)
    kaggle.contests["flowers"] = Contest({**files, **HIDDEN}, listed={name: len(data) for name, data in files.items()})
    download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES)
    assert {p.relative_to(tmp_path / "raw").as_posix() for p in (tmp_path / "raw").rglob("*.*")} == files.keys()
    assert "Kaggle: 2 files not in the listing (3.0 MB), left out: setup.py, huge.bin" in messages
    download.fetch(client, "flowers", tmp_path / "again", tmp_path / "other", replace(RULES, unlisted=True))
    assert (tmp_path / "again" / "setup.py").exists()


CODE = """
import os, sys
from competition.kaggle.client import Client, RetryPolicy, ask
print(ask(Client(dict(os.environ), RetryPolicy(1, 1, 1, 60), print), "competition", {"slug": "flowers"}, "flowers"))
"""


def test_a_killed_command_leaves_no_folder_with_upload_links_in_tmp(kaggle, client, tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    kaggle.faults["GetCompetition"] = ["stall"]
    environment = {**client.environment, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", CODE], env=environment)
    deadline = time.monotonic() + 60
    while kaggle.count("GetCompetition") == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(folder.iterdir())
    process.kill()
    process.wait()
    while list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(folder.iterdir()) == []
