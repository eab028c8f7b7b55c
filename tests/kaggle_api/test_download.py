import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_kaggle.parts import Contest, zip_of

from competition.artifacts.manifest import sha256
from competition.config.errors import UserError
from competition.kaggle import download
from competition.kaggle.client import KaggleError, competition_slug

ROOT = Path(__file__).parents[2]


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def whole(kaggle, folder):
    """The archive is the server's, byte for byte, and sealed."""
    zipped = folder / "flowers.zip"
    return zipped.read_bytes() == kaggle.contests["flowers"].archive and (folder / "flowers.json").exists()


def test_a_competition_is_fetched_whole_and_not_twice(kaggle, client, tmp_path):
    cache, seen = tmp_path / "cache", []
    download.fetch(
        client,
        "https://www.kaggle.com/competitions/flowers/data",
        tmp_path / "raw",
        cache,
        200,
        lambda *n: seen.append(n),
    )
    assert tree(tmp_path / "raw") == kaggle.contests["flowers"].files
    assert whole(kaggle, cache)
    assert seen
    again = download.download(client, "flowers", cache, 200)
    assert (again.fresh, again.verified.files["sample_submission.csv"]) == (False, 17)
    assert kaggle.count("DownloadDataFiles") == 1
    assert not any("Authorization" in headers for name, headers in kaggle.headers if name.startswith("GET"))


PASSING = {
    "rate limit": ("DownloadDataFiles", ["429:1"]),
    "server error": ("DownloadDataFiles", ["500", "503"]),
    "dropped call": ("ListDataFiles", ["drop"]),
    "dropped at storage": ("archive", ["drop"]),
    "storage trouble": ("archive", ["503"]),
    "expired link": ("archive", ["expired"]),
    "cut once": ("archive", ["cut"]),
    "cut without a length": ("archive", ["nolength"]),
    "flipped byte": ("archive", ["flip"]),
    "a page for an archive": ("archive", ["html"]),
    "packed once more on the way": ("archive", ["gzip"]),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_ends_with_the_right_file(kaggle, client, tmp_path, name):
    method, faults = PASSING[name]
    kaggle.faults[method] = list(faults)
    try:
        download.download(client, "flowers", tmp_path / "cache", 200)
    except KaggleError:  # a clear sentence is allowed, the next run must end well
        assert not (tmp_path / "cache" / "flowers.json").exists()
        download.download(client, "flowers", tmp_path / "cache", 200)
    assert whole(kaggle, tmp_path / "cache")
    assert sorted(p.name for p in (tmp_path / "cache").iterdir() if p.suffix != ".lock") == [
        "flowers.json",
        "flowers.zip",
    ]


def test_an_error_page_never_gets_into_a_part(kaggle, client, said, tmp_path):
    kaggle.contests["flowers"] = Contest({"big": random.Random(0).randbytes(1_000_000)})
    kaggle.faults["archive"] = ["cut", "", "expired"]  # a new try asks twice: for the object, then for its rest
    download.download(client, "flowers", tmp_path, 200)
    assert whole(kaggle, tmp_path)
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert ranges[-1] is not None
    assert ranges[-1] == ranges[2]  # nothing of the part was lost to the error page
    assert not any("downloading it again" in line for line in said)  # no damaged zip was put together first


def test_retry_after_is_honoured(kaggle, client, said, tmp_path):
    kaggle.faults["DownloadDataFiles"] = ["429:2"]
    started = time.monotonic()
    download.download(client, "flowers", tmp_path, 200)
    assert time.monotonic() - started > 2
    assert said == ["Kaggle: try 2 of 3 in 2 s: too many requests"]


def test_a_retry_after_beyond_all_patience_is_said_at_once(kaggle, client, tmp_path):
    kaggle.faults["DownloadDataFiles"] = ["429:1800"] * 9
    with pytest.raises(
        KaggleError,
        match=r"refuses more requests for now \(too many requests\): run this again in 30 minutes, after \d\d:\d\d UTC",
    ):
        download.download(client, "flowers", tmp_path, 200)
    assert kaggle.count("DownloadDataFiles") == 1


def test_a_listing_cut_short_by_the_rate_limit_is_a_short_listing(kaggle, client, tmp_path):
    kaggle.faults["ListDataFiles"] = ["", "429:1800"]
    assert download.download(client, "flowers", tmp_path, 200).verified.notes == [
        "2 files (1.5 MB) that are not in the listing are unpacked as well: train/01.tfrec, test/01.tfrec"
    ]


def test_a_listing_that_never_ends_is_left(kaggle, client, tmp_path, monkeypatch):
    files = [{"name": name, "totalBytes": len(data)} for name, data in kaggle.contests["flowers"].files.items()]
    monkeypatch.setattr(kaggle, "list_data_files", lambda ask: {"files": files, "nextPageToken": "again"})
    assert download.download(client, "flowers", tmp_path, 200).verified.notes == []
    assert kaggle.count("ListDataFiles") == 2


def test_what_is_here_and_whole_needs_no_kaggle(kaggle, client, tmp_path):
    download.download(client, "flowers", tmp_path / "cache", 200)
    asked = len(kaggle.calls)
    download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", 200)
    assert len(kaggle.calls) == asked
    assert tree(tmp_path / "raw") == kaggle.contests["flowers"].files


REFUSED = {
    "rules": (
        "DownloadDataFiles",
        "403:You must accept this competition's rules",
        "rules",
        "accept them at https://www.kaggle.com/competitions/flowers/rules",
    ),
    "phone": ("DownloadDataFiles", "403:Please verify your phone number", "phone", "verified phone number"),
    "access": (
        "GetCompetition",
        "403:Permission 'competitions.get' was denied",
        "access",
        "does not let this account see flowers",
    ),
    "slug": ("GetCompetition", "404", "missing", "Kaggle knows no flowers"),
    "credentials": ("GetCompetition", "401", "credentials", "credential from KAGGLE_USERNAME and KAGGLE_KEY"),
    "login page": ("DownloadDataFiles", "login", "page", "another thing than an archive"),
    "html for json": ("GetCompetition", "html", "answer", "could not be understood"),
    "server": ("GetCompetition", "500", "server", "Kaggle's server failed after 3 tries"),
    "connection": ("ListDataFiles", "drop", "connection", "connection to Kaggle failed after 3 tries"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_failure_has_its_own_sentence_and_nothing_counts_as_done(kaggle, client, tmp_path, name):
    method, fault, kind, message = REFUSED[name]
    kaggle.faults[method] = [fault] * 9
    with pytest.raises(KaggleError, match=message) as user_error:
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", 200)
    assert user_error.value.kind == kind
    assert str(user_error.value).count("\n") == 0
    assert not (tmp_path / "raw").exists()
    assert not (tmp_path / "cache" / "flowers.json").exists()


def test_rules_that_were_not_accepted_are_found_before_the_download(kaggle, client, tmp_path):
    kaggle.contests["flowers"].entered = False
    with pytest.raises(KaggleError, match="rules of flowers are not accepted yet"):
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", 200)
    assert kaggle.count("DownloadDataFiles") == 0


def test_a_stalled_download_is_stopped_and_resumed(kaggle, client, tmp_path):
    impatient = dataclasses.replace(client, patience=dataclasses.replace(client.patience, stall=6.0))
    kaggle.contests["flowers"].archive = zip_of({"big": random.Random(0).randbytes(6_000_000)})
    kaggle.contests["flowers"].listed = {"big": 6_000_000}
    kaggle.faults["archive"] = ["hang"]
    download.download(impatient, "flowers", tmp_path, 200)
    assert whole(kaggle, tmp_path)
    ranges = [headers.get("Range") for name, headers in kaggle.calls if name == "archive"]
    assert ranges[0] is None
    assert any(ranges[1:])  # the second went on where the first stopped


def test_an_archive_that_was_damaged_on_the_disk_is_downloaded_again(kaggle, client, tmp_path):
    download.download(client, "flowers", tmp_path, 200)
    data = bytearray((tmp_path / "flowers.zip").read_bytes())
    data[len(data) // 2] ^= 255
    (tmp_path / "flowers.zip").write_bytes(data)
    assert download.download(client, "flowers", tmp_path, 200).fresh
    assert whole(kaggle, tmp_path)


def test_damaged_twice_is_set_aside_and_never_done(kaggle, client, tmp_path):
    kaggle.faults["archive"] = ["flip"] * 9
    with pytest.raises(KaggleError, match=r"is damaged: .* kept as /.*/flowers.corrupt"):
        download.download(client, "flowers", tmp_path, 200)
    assert (tmp_path / "flowers.corrupt").exists()
    assert not (tmp_path / "flowers.json").exists()


def test_an_archive_without_a_listed_file_is_refused(kaggle, client, tmp_path):
    files = kaggle.contests["flowers"].files
    kaggle.contests["flowers"] = Contest(files, listed={**{n: len(d) for n, d in files.items()}, "train/02.tfrec": 9})
    with pytest.raises(KaggleError, match=r"lacks 1 listed files: train/02\.tfrec"):
        download.download(client, "flowers", tmp_path, 200)


def test_two_at_once_the_second_says_so(kaggle, client, tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / ".flowers.lock"), pytest.raises(UserError, match="is being downloaded by another process"):
        download.download(client, "flowers", tmp_path, 200)


def test_a_full_disk_is_a_sentence(kaggle, client, home, tmp_path):
    code = CODE.replace("# limit", "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))")
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "cache"], env=_env(client), capture_output=True, text=True
    )
    assert "the download could not be written to disk" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "cache" / "flowers.json").exists()


# Ctrl-C does nothing in a process whose parent ignores it, as a shell's background jobs do: here it counts.
CODE = """
import os, pathlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from competition.kaggle import download
from competition.kaggle.client import Client, Patience
# limit
client = Client(dict(os.environ), Patience(3, 0.05, 3.0, 8.0), print)
download.download(client, "flowers", pathlib.Path(sys.argv[1]), 200)
"""


def _env(client):
    return {**client.environment, "PYTHONPATH": str(ROOT)}


def _children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(child) for child in found.stdout.split()]


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_the_middle_nothing_is_done_and_the_next_run_ends_well(kaggle, client, tmp_path, with_signal):
    kaggle.faults["archive"] = ["slow:0.1"]
    running = subprocess.Popen([sys.executable, "-c", CODE, tmp_path], env=_env(client), stderr=subprocess.PIPE)
    until = time.monotonic() + 20
    while kaggle.count("archive") == 0 and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(random.random())
    children = _children(running.pid)
    running.send_signal(with_signal)
    assert running.wait(20) not in {0, None}
    time.sleep(0.5)
    assert children
    assert not any(Path(f"/proc/{child}/status").exists() and _alive(child) for child in children)
    assert not (tmp_path / "flowers.json").exists()
    download.download(client, "flowers", tmp_path, 200)
    assert whole(kaggle, tmp_path)
    assert sha256(tmp_path / "flowers.zip")


def _killed_at(process, moment):
    """Wait for the moment and kill; False when the process ended before it."""
    while process.poll() is None:
        if moment():
            process.kill()
            return process.wait() == -signal.SIGKILL
        time.sleep(0.001)
    return False


def test_twenty_kills_at_random_moments_and_the_same_command_ends_with_the_right_file(kaggle, client, tmp_path):
    rng, tries, kills, cuts = random.Random(12), 0, 0, 0
    kaggle.contests["flowers"] = Contest({"train/01.tfrec": rng.randbytes(6_000_000)})
    cache, environment = tmp_path / "cache", {**_env(client), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", CODE, cache]
    while kills < 20 or cuts < 5:  # in the middle of the archive some of them must come, however fast this machine is
        tries += 1
        assert tries <= 80, (kills, cuts)
        kaggle.faults["archive"], kaggle.served = ["slow:0.01"], 0.0
        asked = {method: kaggle.count(method) for method in ("ListDataFiles", "DownloadDataFiles")}
        what, share = rng.choice([*asked, "archive", "archive", "archive"]), rng.uniform(0.02, 1.05)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if what == "archive":
            kills += _killed_at(process, lambda share=share: kaggle.served >= min(share, 1))
            cuts += kaggle.served < 1
        else:
            kills += _killed_at(process, lambda what=what, asked=asked: kaggle.count(what) > asked[what])
        if (cache / "flowers.json").exists():  # sealed is whole, whenever the kill came
            assert whole(kaggle, cache)
            shutil.rmtree(cache)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, whole(kaggle, cache)) == (0, True), done.stderr
    assert sorted(path.name for path in cache.iterdir() if path.suffix != ".lock") == ["flowers.json", "flowers.zip"]
    assert any(headers.get("Range") for name, headers in kaggle.calls if name == "archive")  # no part was wasted


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1][:3]


@pytest.mark.parametrize(
    "text", ["flowers", "https://www.kaggle.com/c/flowers", "kaggle.com/competitions/flowers/overview?x=1"]
)
def test_a_link_is_as_good_as_a_slug(text):
    assert competition_slug(text) == "flowers"


@pytest.mark.parametrize("text", ["", "https://example.com/flowers", "a b", "../x"])
def test_what_is_no_slug_is_refused(text):
    with pytest.raises(UserError, match="is not a competition: expected its slug"):
        competition_slug(text)
