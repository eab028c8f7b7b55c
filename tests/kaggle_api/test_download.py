import base64
import dataclasses
import hashlib
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import files_below
from fake_kaggle.parts import Contest, zip_of
from fake_kaggle.small_competition import FILES, RULES
from filelock import FileLock

from competition.config.errors import UserError
from competition.kaggle import download
from competition.kaggle.client import competition_slug
from competition.kaggle.errors import KaggleError

ROOT = Path(__file__).parents[2]


def is_complete(kaggle, folder):
    """Return True if the archive equals the server's and its manifest exists."""
    archive = folder / "flowers.zip"
    return archive.read_bytes() == kaggle.contests["flowers"].archive and (folder / "flowers.json").exists()


def test_a_competition_is_downloaded_completely_and_only_once(kaggle, client, tmp_path):
    cache = tmp_path / "cache"
    download.fetch(client, "https://www.kaggle.com/competitions/flowers/data", tmp_path / "raw", cache, RULES)
    assert files_below(tmp_path / "raw") == kaggle.contests["flowers"].files
    assert is_complete(kaggle, cache)
    requests = len(kaggle.calls)
    assert download.fetch(client, "flowers", tmp_path / "again", cache, RULES).files["sample_submission.csv"] == 17
    assert len(kaggle.calls) == requests
    assert not any("Authorization" in headers for name, headers in kaggle.headers if name.startswith("GET"))


def test_an_archive_with_a_file_named_after_the_credential_leaves_nothing(kaggle, client, tmp_path):
    coded = base64.b64encode(f"ada:{kaggle.key}".encode()).decode()
    name = f"train/{coded.replace('/', '_')}.tfrec"
    kaggle.contests["flowers"] = Contest({**FILES, name: b"1"}, listed={n: len(data) for n, data in FILES.items()})
    with pytest.raises(UserError, match="a file in it is named after your Kaggle credential") as refused:
        download.fetch(
            client, "flowers", tmp_path / "raw", tmp_path / "cache", dataclasses.replace(RULES, unlisted=True)
        )
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == [] and not (tmp_path / "raw").exists() and kaggle.key not in str(refused.value)


TEMPORARY_ERRORS = {
    "server errors, a dropped call": {"DownloadDataFiles": ["500", "503"], "ListDataFiles": ["drop"]},
    "expired link": {"archive": ["expired"]},
    "cut without a length": {"archive": ["nolength"]},
    "flipped byte": {"archive": ["flip"]},
    "web page instead of an archive": {"archive": ["html"]},
}


@pytest.mark.parametrize("name", TEMPORARY_ERRORS)
def test_a_temporary_error_is_retried_until_the_file_is_complete(kaggle, client, tmp_path, name):
    kaggle.faults |= {method: [*faults] for method, faults in TEMPORARY_ERRORS[name].items()}
    try:
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES)
    except KaggleError:  # an error is allowed if the next run succeeds
        assert not (tmp_path / "cache" / "flowers.json").exists() and not (tmp_path / "raw").exists()
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES)
    assert is_complete(kaggle, tmp_path / "cache")
    assert files_below(tmp_path / "raw") == kaggle.contests["flowers"].files
    left = sorted(path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock")
    assert left == ["flowers.json", "flowers.zip"]


def test_an_error_page_is_never_written_to_a_partial_file(kaggle, client, messages, tmp_path):
    kaggle.contests["flowers"] = Contest({"big": random.Random(0).randbytes(1_000_000)})
    # A new try sends two requests: for the object, then for the rest of it.
    kaggle.faults["archive"] = ["cut", "", "expired"]
    download.fetch(client, "flowers", tmp_path / "raw", tmp_path, RULES)
    assert is_complete(kaggle, tmp_path)
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert ranges[-1] is not None
    assert ranges[-1] == ranges[2]  # the error page did not change the partial file
    assert not any("downloading it again" in line for line in messages)  # no damaged zip was assembled


PERMANENT_ERRORS = {
    "rules": (
        "DownloadDataFiles",
        "403:You must accept this competition's rules",
        "rules",
        "accept them at https://www.kaggle.com/competitions/flowers/rules",
    ),
    "phone": ("DownloadDataFiles", "403:Please verify your phone number", "phone", "verified phone number"),
    "slug": ("GetCompetition", "404", "missing", "Kaggle knows no flowers"),
    "credentials": ("GetCompetition", "401", "credentials", "credential from KAGGLE_USERNAME and KAGGLE_KEY"),
    "login page": ("DownloadDataFiles", "login", "page", "another thing than an archive"),
    "connection": ("ListDataFiles", "drop", "connection", "connection to Kaggle failed after 3 tries"),
}


@pytest.mark.parametrize("name", PERMANENT_ERRORS)
def test_each_permanent_error_has_its_own_message_and_leaves_no_result(kaggle, client, tmp_path, name):
    method, fault, kind, message = PERMANENT_ERRORS[name]
    kaggle.faults[method] = [fault] * 9
    with pytest.raises(KaggleError, match=message) as user_error:
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES)
    assert user_error.value.kind == kind
    assert str(user_error.value).count("\n") == 0
    assert not (tmp_path / "raw").exists()
    assert not (tmp_path / "cache" / "flowers.json").exists()


def test_a_stalled_download_is_stopped_and_resumed(kaggle, client, tmp_path):
    impatient = dataclasses.replace(client, policy=dataclasses.replace(client.policy, stall=6.0))
    kaggle.contests["flowers"].archive = zip_of({"big": random.Random(0).randbytes(6_000_000)})
    kaggle.contests["flowers"].listed = {"big": 6_000_000}
    kaggle.faults["archive"] = ["hang"]
    download.fetch(impatient, "flowers", tmp_path / "raw", tmp_path, RULES)
    assert is_complete(kaggle, tmp_path)
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert ranges[0] is None
    assert any(ranges[1:])  # the second request continued where the first stopped


def test_an_archive_that_was_damaged_on_the_disk_is_downloaded_again(kaggle, client, tmp_path):
    archive = kaggle.contests["flowers"].archive
    (tmp_path / "flowers.zip").write_bytes(archive[:-1] + b"?")
    record = {"sha256": hashlib.sha256(archive).hexdigest(), "files": {"sample_submission.csv": 17}, "notes": []}
    (tmp_path / "flowers.json").write_text(json.dumps(record))
    download.fetch(client, "flowers", tmp_path / "raw", tmp_path, RULES)
    assert kaggle.count("DownloadDataFiles") == 1 and is_complete(kaggle, tmp_path)


def test_an_archive_that_is_damaged_twice_is_renamed_and_never_used(kaggle, client, tmp_path):
    kaggle.faults["archive"] = ["flip"] * 9
    with pytest.raises(KaggleError, match=r"is damaged: .* kept as /.*/flowers.corrupt"):
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path, RULES)
    assert (tmp_path / "flowers.corrupt").exists()
    assert not (tmp_path / "flowers.json").exists()


def test_a_second_download_at_the_same_time_is_an_error(kaggle, client, tmp_path):
    in_use = pytest.raises(UserError, match=r"is in use by another run; wait for it")
    with FileLock(tmp_path / ".flowers.lock"), in_use:
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path, RULES)


def test_a_full_disk_is_reported_in_one_sentence(kaggle, client, tmp_path):
    kaggle.contests["flowers"] = Contest({"big": random.Random(0).randbytes(1_000_000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Of the child too; it stands for a full disk. Python would leave a truncated .pyc under a limit below its size.
    resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, limits[1]))
    try:
        with pytest.raises(KaggleError, match=r"^the download could not be written to disk \(File too large\): .*\.$"):
            download.fetch(client, "flowers", tmp_path / "raw", tmp_path, RULES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "flowers.json").exists() and not (tmp_path / "flowers.zip").exists()


# A background job of a shell ignores Ctrl-C, and so do its children; the first line restores the default handler.
CODE = """
import os, pathlib, shutil, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from competition.kaggle import archive, download
from competition.kaggle.client import Client, RetryPolicy
client = Client(dict(os.environ), RetryPolicy(3, 0.05, 3.0, 8.0), print)
folder = pathlib.Path(sys.argv[1])
shutil.rmtree(folder / "raw", ignore_errors=True)  # of a killed process, as `make download` removes it
download.fetch(client, "flowers", folder / "raw", folder, archive.UnpackRules(200))
"""


def _env(client):
    return {**client.environment, "PYTHONPATH": str(ROOT)}


def _children(pid):
    process = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(child) for child in process.stdout.split()]


def _kill_when(process, condition):
    """Kill the process once `condition()` is true; return False if it ended before."""
    while process.poll() is None:
        if condition():
            process.kill()
            return process.wait() == -signal.SIGKILL
        time.sleep(0.001)
    return False


def test_after_kills_at_random_moments_the_same_command_completes_the_file(kaggle, client, tmp_path):
    rng, tries, kills, cuts = random.Random(12), 0, 0, 0
    kaggle.contests["flowers"] = Contest({"train/01.tfrec": rng.randbytes(3_000_000)})
    cache, environment = tmp_path / "cache", {**_env(client), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", CODE, cache]
    while kills < 6 or cuts < 2:  # at least 2 during the archive, on a machine of any speed
        tries += 1
        assert tries <= 40, (kills, cuts)
        kaggle.faults["archive"], kaggle.served = ["slow:0.01"], 0.0
        calls_before = {method: kaggle.count(method) for method in ("ListDataFiles", "DownloadDataFiles")}
        method, share = rng.choice([*calls_before, "archive", "archive", "archive"]), rng.uniform(0.02, 1.05)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if method == "archive":
            kills += _kill_when(process, lambda share=share: kaggle.served >= min(share, 1))
            cuts += kaggle.served < 1
        else:
            kills += _kill_when(process, lambda method=method, calls=calls_before: kaggle.count(method) > calls[method])
        if (cache / "flowers.json").exists():  # a file with a manifest is complete, whenever the process was killed
            assert is_complete(kaggle, cache)
            shutil.rmtree(cache)
    process_result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (process_result.returncode, is_complete(kaggle, cache)) == (0, True), process_result.stderr
    left = sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")
    assert left == ["flowers.json", "flowers.zip", "raw"]
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert any(ranges)  # partial files were resumed


def _alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and "Z" not in stat.read_text().split(")")[-1][:3]


@pytest.mark.parametrize("text", ["", "https://example.com/flowers", "a b", "../x"])
def test_an_invalid_slug_is_an_error(text):
    with pytest.raises(UserError, match="is not a competition: expected its slug"):
        competition_slug(text)
    assert competition_slug("kaggle.com/competitions/flowers/overview?x=1") == "flowers"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_download_stopped_by_a_signal_leaves_no_result_and_the_next_run_succeeds(
    kaggle, client, tmp_path, signal_number
):
    kaggle.faults["archive"] = ["slow:0.1"]
    process = subprocess.Popen([sys.executable, "-c", CODE, tmp_path], env=_env(client), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while kaggle.count("archive") == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.random())
    children = _children(process.pid)
    process.send_signal(signal_number)
    assert process.wait(20) not in {0, None}
    time.sleep(0.5)
    assert children
    assert not any(_alive(child) for child in children)
    assert not (tmp_path / "flowers.json").exists()
    download.fetch(client, "flowers", tmp_path / "raw", tmp_path, RULES)
    assert is_complete(kaggle, tmp_path)


def test_rules_that_were_not_accepted_are_reported_before_the_download(kaggle, client, tmp_path):
    kaggle.contests["flowers"].entered = False
    with pytest.raises(KaggleError, match="rules of flowers are not accepted yet"):
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES)
    assert kaggle.count("DownloadDataFiles") == 0
