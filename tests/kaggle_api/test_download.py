import base64
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from builders import ROOT, files_below, largest_file, wait_until
from fake_kaggle.parts import FILES, QUICK, Contest, zip_of
from filelock import FileLock
from preloaded import become, start_process

from competition.config.errors import UserError
from competition.files import child_process
from competition.kaggle import download
from competition.kaggle.client import Client, competition_slug
from competition.kaggle.errors import KaggleError


def fetch(client, folder, slug="flowers"):
    download.fetch(client, slug, folder / "raw", folder / "cache")


def with_policy(client, **changes):
    return dataclasses.replace(client, policy=dataclasses.replace(client.policy, **changes))


def is_complete(kaggle, folder):
    """Return True if the archive equals the server's, and nothing else is left of the download."""
    cache = folder / "cache"
    is_whole = (cache / "flowers.zip").read_bytes() == kaggle.contests["flowers"].archive
    return is_whole and {path.name for path in cache.iterdir() if path.suffix != ".lock"} == {"flowers.zip"}


def test_a_competition_is_downloaded_completely_and_only_once_unless_the_archive_is_damaged(kaggle, client, tmp_path):
    fetch(client, tmp_path, slug="https://www.kaggle.com/competitions/flowers/data")
    assert files_below(tmp_path / "raw") == kaggle.contests["flowers"].files and is_complete(kaggle, tmp_path)
    requests = len(kaggle.calls)
    shutil.rmtree(tmp_path / "raw")
    fetch(client, tmp_path)
    assert files_below(tmp_path / "raw") == FILES and len(kaggle.calls) == requests
    assert not any("Authorization" in headers for name, headers in kaggle.headers if name.startswith("GET"))
    shutil.rmtree(tmp_path / "raw")
    (tmp_path / "cache" / "flowers.zip").write_bytes(kaggle.contests["flowers"].archive[:-1])
    fetch(client, tmp_path)
    assert kaggle.count("DownloadDataFiles") == 2 and is_complete(kaggle, tmp_path)


def test_an_archive_with_a_file_named_after_the_credential_leaves_nothing(kaggle, client, tmp_path):
    coded = base64.b64encode(f"ada:{kaggle.key}".encode()).decode()
    name = f"train/{coded.replace('/', '_')}.tfrec"
    kaggle.contests["flowers"] = Contest({**FILES, name: b"1"})
    with pytest.raises(UserError, match="a file in it is named after your Kaggle credential") as refused:
        fetch(client, tmp_path)
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == [] and not (tmp_path / "raw").exists() and kaggle.key not in str(refused.value)


TEMPORARY_ERRORS = {
    "server errors, a dropped call": {"DownloadDataFiles": ["500", "503"], "GetCompetition": ["drop"]},
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
        assert not (tmp_path / "raw").exists()
        fetch(client, tmp_path)
    assert files_below(tmp_path / "raw") == kaggle.contests["flowers"].files and is_complete(kaggle, tmp_path)


PERMANENT_ERRORS = {
    "rules": ("DownloadDataFiles", "403:You must accept the rules", "rules", "accept them at .*/flowers/rules"),
    "phone": ("DownloadDataFiles", "403:Please verify your phone number", "phone", "verified phone number"),
    "slug": ("GetCompetition", "404", "missing", "Kaggle knows no flowers"),
    "credentials": ("GetCompetition", "401", "credentials", "credential from KAGGLE_USERNAME and KAGGLE_KEY"),
    "login page": ("DownloadDataFiles", "login", "page", "another thing than an archive"),
    "connection": ("GetCompetition", "drop", "connection", "connection to Kaggle failed after 3 tries"),
    "damaged twice": ("archive", "flip", "damaged", "is damaged: .*after a second download"),
}


@pytest.mark.parametrize("name", PERMANENT_ERRORS)
def test_each_permanent_error_has_its_own_message_and_leaves_no_result(kaggle, client, tmp_path, name):
    method, fault, kind, message = PERMANENT_ERRORS[name]
    kaggle.faults[method] = [fault] * 9
    with pytest.raises(KaggleError, match=message) as user_error:
        fetch(client, tmp_path)
    assert (user_error.value.kind, str(user_error.value).count("\n")) == (kind, 0)
    assert not (tmp_path / "raw").exists()


def test_a_long_retry_after_ends_the_call_with_the_time_of_the_next_attempt(kaggle, client):
    kaggle.faults["GetCompetition"] = ["429:3600"] * 9
    with pytest.raises(KaggleError, match=r"run this again in 60 minutes, after 20.* \d\d:\d\d UTC"):
        download.require_access(client, "flowers")
    assert kaggle.count("GetCompetition") == 1


def test_interruptions_that_make_progress_do_not_use_up_the_tries(kaggle, client, tmp_path):
    kaggle.contests["flowers"] = Contest({"big": random.Random(0).randbytes(1_000_000)})
    # Each try receives half of the remaining bytes; QUICK has 3 tries.
    kaggle.faults["archive"] = ["cut"] + ["", "cut"] * 2
    fetch(client, tmp_path)
    assert is_complete(kaggle, tmp_path)


def test_a_stalled_download_is_stopped_and_resumed(kaggle, client, tmp_path):
    kaggle.contests["flowers"].archive = zip_of({"big": random.Random(0).randbytes(6_000_000)})
    kaggle.faults["archive"] = ["hang"]
    fetch(with_policy(client, stall=6.0), tmp_path)
    assert is_complete(kaggle, tmp_path)
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert ranges[0] is None and any(ranges[1:])  # the second request continued where the first stopped


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
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix == ".zip"]


def fetch_alone(folder, environment):
    """In a process of its own, whose requests to Kaggle are new processes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job of a shell ignores
    become(folder, environment, 1, 2)
    shutil.rmtree(folder / "raw", ignore_errors=True)  # of a killed process, as `make download` removes it
    fetch(Client(environment, QUICK, print), folder)


def test_after_signals_at_random_moments_no_child_goes_on_and_the_file_is_completed(kaggle, client, tmp_path) -> None:
    rng, tries, kills, cuts, with_links = random.Random(12), 0, 0, 0, 0
    kaggle.contests["flowers"] = Contest({"train/01.tfrec": rng.randbytes(3_000_000)})
    environment = {**client.environment, "PYTHONPATH": str(ROOT)}
    while kills < 5 or cuts < 2 or not with_links:  # at least 2 during the archive, on a machine of any speed
        tries += 1
        assert tries <= 40, (kills, cuts)
        (links := tmp_path / f"tmp{tries}").mkdir()  # for the upload links and settings of a child
        method, share = ("archive", "GetCompetition", "archive", "DownloadDataFiles")[tries % 4], rng.uniform(0.02, 1.0)
        kaggle.faults |= {"archive": ["slow:0.01"], **({method: ["stall"]} if method != "archive" else {})}
        kaggle.served, calls = 0.0, kaggle.count(method)
        process = start_process(fetch_alone, tmp_path, {**environment, "TMPDIR": str(links)})
        while process.is_alive() and (kaggle.count(method) == calls or (method == "archive" and kaggle.served < share)):
            time.sleep(0.001)
        is_running = process.is_alive()
        with_links += is_running and method != "archive" and any(links.iterdir())
        if is_running:
            os.kill(process.pid, (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[tries % 3])
        process.join(20)
        assert process.exitcode is not None
        kills += process.exitcode != 0 and is_running
        cuts += method == "archive" and kaggle.served < 1
        time.sleep(0.2)
        served = kaggle.served
        time.sleep(0.1)
        assert kaggle.served == served
        assert method == "archive" or wait_until(lambda folder=links: not any(folder.iterdir()))
        if (tmp_path / "cache" / "flowers.zip").exists():  # whenever the process was ended
            assert is_complete(kaggle, tmp_path)
            shutil.rmtree(tmp_path / "cache")
    last = start_process(fetch_alone, tmp_path, environment)
    last.join()
    assert (last.exitcode, is_complete(kaggle, tmp_path)) == (0, True)
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert any(ranges)  # partial files were resumed


@pytest.mark.parametrize("text", ["", "https://example.com/flowers", "a b", "../x"])
def test_an_invalid_slug_is_an_error(text):
    with pytest.raises(UserError, match="is not a competition: expected its slug"):
        competition_slug(text)
    assert competition_slug("kaggle.com/competitions/flowers/overview?x=1") == "flowers"
