import base64
import dataclasses
import random
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from builders import ROOT, files_below, largest_file
from fake_kaggle.parts import Contest, zip_of
from fake_kaggle.small_competition import FILES, RULES
from filelock import FileLock

from competition.config.errors import UserError
from competition.files import child_process
from competition.kaggle import download
from competition.kaggle.client import competition_slug
from competition.kaggle.errors import KaggleError, retry_after_seconds


def fetch(client, folder, rules=RULES, slug="flowers"):
    return download.fetch(client, slug, folder / "raw", folder / "cache", rules)


def is_complete(kaggle, folder):
    """Return True if the archive equals the server's, its manifest exists, and nothing else is left of the download."""
    cache, files = folder / "cache", {"flowers.json", "flowers.zip"}
    is_whole = (cache / "flowers.zip").read_bytes() == kaggle.contests["flowers"].archive
    return is_whole and {path.name for path in cache.iterdir() if path.suffix != ".lock"} == files


def test_a_competition_is_downloaded_completely_and_only_once(kaggle, client, tmp_path):
    fetch(client, tmp_path, slug="https://www.kaggle.com/competitions/flowers/data")
    assert files_below(tmp_path / "raw") == kaggle.contests["flowers"].files and is_complete(kaggle, tmp_path)
    requests = len(kaggle.calls)
    shutil.rmtree(tmp_path / "raw")
    assert fetch(client, tmp_path).files["sample_submission.csv"] == 17 and len(kaggle.calls) == requests
    assert not any("Authorization" in headers for name, headers in kaggle.headers if name.startswith("GET"))


def test_an_archive_with_a_file_named_after_the_credential_leaves_nothing(kaggle, client, tmp_path):
    coded = base64.b64encode(f"ada:{kaggle.key}".encode()).decode()
    name = f"train/{coded.replace('/', '_')}.tfrec"
    kaggle.contests["flowers"] = Contest({**FILES, name: b"1"}, listed={n: len(data) for n, data in FILES.items()})
    with pytest.raises(UserError, match="a file in it is named after your Kaggle credential") as refused:
        fetch(client, tmp_path, dataclasses.replace(RULES, unlisted=True))
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == [] and not (tmp_path / "raw").exists() and kaggle.key not in str(refused.value)


TEMPORARY_ERRORS = {
    "server errors, a dropped call": {"DownloadDataFiles": ["500", "503"], "ListDataFiles": ["drop"]},
    "expired link": {"archive": ["expired"]},
    "link expired within the archive": {"archive": ["cut", "", "expired"]},
    "cut without a length": {"archive": ["nolength"]},
    "flipped byte": {"archive": ["flip"]},
    "web page instead of an archive": {"archive": ["html"]},
}


@pytest.mark.parametrize("name", TEMPORARY_ERRORS)
def test_a_temporary_error_is_retried_until_the_file_is_complete(kaggle, client, tmp_path, name):
    kaggle.faults |= {method: [*faults] for method, faults in TEMPORARY_ERRORS[name].items()}
    try:
        fetch(client, tmp_path)
    except KaggleError:  # an error is allowed if the next run succeeds
        assert not (tmp_path / "cache" / "flowers.json").exists() and not (tmp_path / "raw").exists()
        fetch(client, tmp_path)
    assert files_below(tmp_path / "raw") == kaggle.contests["flowers"].files and is_complete(kaggle, tmp_path)


PERMANENT_ERRORS = {
    "rules": ("DownloadDataFiles", "403:You must accept the rules", "rules", "accept them at .*/flowers/rules"),
    "phone": ("DownloadDataFiles", "403:Please verify your phone number", "phone", "verified phone number"),
    "slug": ("GetCompetition", "404", "missing", "Kaggle knows no flowers"),
    "credentials": ("GetCompetition", "401", "credentials", "credential from KAGGLE_USERNAME and KAGGLE_KEY"),
    "login page": ("DownloadDataFiles", "login", "page", "another thing than an archive"),
    "connection": ("ListDataFiles", "drop", "connection", "connection to Kaggle failed after 3 tries"),
    "damaged twice": ("archive", "flip", "damaged", r"is damaged: .* kept as /.*/flowers.corrupt"),
}


@pytest.mark.parametrize("name", PERMANENT_ERRORS)
def test_each_permanent_error_has_its_own_message_and_leaves_no_result(kaggle, client, tmp_path, name):
    method, fault, kind, message = PERMANENT_ERRORS[name]
    kaggle.faults[method] = [fault] * 9
    with pytest.raises(KaggleError, match=message) as user_error:
        fetch(client, tmp_path)
    assert (user_error.value.kind, str(user_error.value).count("\n")) == (kind, 0)
    assert not (tmp_path / "raw").exists() and not (tmp_path / "cache" / "flowers.json").exists()


def test_a_long_retry_after_ends_the_call_with_the_time_of_the_next_attempt(kaggle, client):
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    kaggle.faults["GetCompetition"] = [f"429:{date}"] * 9
    with pytest.raises(KaggleError, match=r"run this again in \d\d minutes, after \d\d:\d\d UTC") as user_error:
        download.require_access(client, "flowers")
    assert 3500 < user_error.value.retry_after <= 3600 and kaggle.count("GetCompetition") == 1
    assert {retry_after_seconds(without_meaning) for without_meaning in ("inf", "nan", "soon", "1e999", None)} == {None}


def test_interruptions_that_make_progress_do_not_use_up_the_tries(kaggle, client, tmp_path):
    kaggle.contests["flowers"] = Contest({"big": random.Random(0).randbytes(1_000_000)})
    # Each try receives half of the remaining bytes; QUICK has 3 tries.
    kaggle.faults["archive"] = ["cut"] + ["", "cut"] * 2
    fetch(client, tmp_path)
    assert is_complete(kaggle, tmp_path)


def test_a_stalled_download_is_stopped_and_resumed(kaggle, client, tmp_path):
    impatient = dataclasses.replace(client, policy=dataclasses.replace(client.policy, stall=6.0))
    kaggle.contests["flowers"].archive = zip_of({"big": random.Random(0).randbytes(6_000_000)})
    kaggle.contests["flowers"].listed = {"big": 6_000_000}
    kaggle.faults["archive"] = ["hang"]
    fetch(impatient, tmp_path)
    assert is_complete(kaggle, tmp_path)
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert ranges[0] is None and any(ranges[1:])  # the second request continued where the first stopped


def test_an_archive_that_was_damaged_on_the_disk_is_downloaded_again(kaggle, client, tmp_path):
    fetch(client, tmp_path)
    shutil.rmtree(tmp_path / "raw")
    (tmp_path / "cache" / "flowers.zip").write_bytes(kaggle.contests["flowers"].archive[:-1] + b"?")
    fetch(client, tmp_path)
    assert kaggle.count("DownloadDataFiles") == 2 and is_complete(kaggle, tmp_path)


def test_a_second_download_at_the_same_time_is_an_error(kaggle, client, tmp_path):
    in_use = pytest.raises(UserError, match=r"is in use by another run; wait for it")
    (tmp_path / "cache").mkdir()
    with FileLock(tmp_path / "cache" / ".flowers.lock"), in_use:
        fetch(client, tmp_path)


def test_a_full_disk_is_reported_in_one_sentence(kaggle, client, tmp_path, monkeypatch):
    monkeypatch.setattr(child_process, "subprocess", subprocess)  # only a child of this process inherits its limit
    kaggle.contests["flowers"] = Contest({"big": random.Random(0).randbytes(1_000_000)})
    sentence = r"^the download could not be written to disk \(File too large\): .*\.$"
    # Python would leave a truncated .pyc under a limit below its size.
    with largest_file(900_000), pytest.raises(KaggleError, match=sentence):
        fetch(client, tmp_path)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix in (".json", ".zip")]


# A background job of a shell ignores Ctrl-C, and so do its children; the first line restores the default handler.
CODE = """
import os, pathlib, shutil, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from competition.kaggle import archive, download
from competition.kaggle.client import Client, RetryPolicy
client = Client(dict(os.environ), RetryPolicy(3, 0.05, 3.0, 8.0), print)
folder = pathlib.Path(sys.argv[1])
shutil.rmtree(folder / "raw", ignore_errors=True)  # of a killed process, as `make download` removes it
download.fetch(client, "flowers", folder / "raw", folder / "cache", archive.UnpackRules(200))
"""


def ended_by(number, process, condition):
    """Send the signal once `condition()` is true; return False if the process ended before."""
    while process.poll() is None:
        if condition():
            process.send_signal(number)
            return process.wait(20) != 0
        time.sleep(0.001)
    return False


def test_after_signals_at_random_moments_no_child_goes_on_and_the_same_command_completes_the_file(
    kaggle, client, tmp_path
):
    rng, tries, kills, cuts = random.Random(12), 0, 0, 0
    kaggle.contests["flowers"] = Contest({"train/01.tfrec": rng.randbytes(3_000_000)})
    environment = {**client.environment, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", CODE, tmp_path]
    while kills < 5 or cuts < 2:  # at least 2 during the archive, on a machine of any speed
        number = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[tries % 3]
        tries += 1
        assert tries <= 40, (kills, cuts)
        kaggle.faults["archive"], kaggle.served = ["slow:0.01"], 0.0
        calls_before = {method: kaggle.count(method) for method in ("ListDataFiles", "DownloadDataFiles")}
        method, share = rng.choice([*calls_before, "archive", "archive", "archive"]), rng.uniform(0.02, 1.05)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if method == "archive":
            kills += ended_by(number, process, lambda share=share: kaggle.served >= min(share, 1))
            cuts += kaggle.served < 1
        else:
            calls = calls_before[method]
            kills += ended_by(number, process, lambda method=method, calls=calls: kaggle.count(method) > calls)
        time.sleep(0.2)
        served = kaggle.served
        time.sleep(0.1)
        assert kaggle.served == served
        if (tmp_path / "cache" / "flowers.json").exists():  # whenever the process was ended
            assert is_complete(kaggle, tmp_path)
            shutil.rmtree(tmp_path / "cache")
    last = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (last.returncode, is_complete(kaggle, tmp_path)) == (0, True), last.stderr
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert any(ranges)  # partial files were resumed


REQUEST = """
import os
from competition.kaggle.client import Client, RetryPolicy
from competition.kaggle.download import require_access
require_access(Client(dict(os.environ), RetryPolicy(1, 1, 1, 60), print), "flowers")
"""


def test_a_killed_command_leaves_no_folder_with_upload_links_in_tmp(kaggle, client, tmp_path):
    (folder := tmp_path / "tmp").mkdir()
    kaggle.faults["GetCompetition"] = ["stall"]
    environment = {**client.environment, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    process, deadline = subprocess.Popen([sys.executable, "-c", REQUEST], env=environment), time.monotonic() + 60
    while kaggle.count("GetCompetition") == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(folder.iterdir())
    process.kill()
    process.wait()
    while list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("text", ["", "https://example.com/flowers", "a b", "../x"])
def test_an_invalid_slug_is_an_error(text):
    with pytest.raises(UserError, match="is not a competition: expected its slug"):
        competition_slug(text)
    assert competition_slug("kaggle.com/competitions/flowers/overview?x=1") == "flowers"
