"""The client and server faults: waiting times, messages and files left on disk."""

import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from fake_kaggle.parts import Contest
from fake_kaggle.small_competition import RULES

from competition.kaggle import download
from competition.kaggle.errors import KaggleError, retry_after_seconds

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("header", ["inf", "nan", "soon", "1e999", None])
def test_a_retry_after_without_meaning_is_ignored(header):
    assert retry_after_seconds(header) is None


def test_a_long_retry_after_ends_the_call_with_the_time_of_the_next_attempt(kaggle, client):
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    kaggle.faults["GetCompetition"] = [f"429:{date}"] * 9
    with pytest.raises(KaggleError, match=r"run this again in \d\d minutes, after \d\d:\d\d UTC") as user_error:
        download.require_access(client, "flowers")
    assert 3500 < user_error.value.retry_after <= 3600
    assert kaggle.count("GetCompetition") == 1


def test_interruptions_that_make_progress_do_not_use_up_the_tries(kaggle, client, tmp_path):
    kaggle.contests["flowers"] = Contest({"big": random.Random(0).randbytes(1_000_000)})
    # Each try receives half of the remaining bytes; QUICK has 3 tries.
    kaggle.faults["archive"] = ["cut"] + ["", "cut"] * 2
    download.fetch(client, "flowers", tmp_path / "raw", tmp_path, RULES)
    assert (tmp_path / "flowers.zip").read_bytes() == kaggle.contests["flowers"].archive


CODE = """
import os, sys
from competition.kaggle.client import Client, RetryPolicy
from competition.kaggle.download import require_access
require_access(Client(dict(os.environ), RetryPolicy(1, 1, 1, 60), print), "flowers")
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
