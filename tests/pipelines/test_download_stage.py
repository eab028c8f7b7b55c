"""`make download` and `make doctor` against a Kaggle on loopback and its real client."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stages import Workspace
from world import ROOT

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.kaggle import download
from competition.kaggle.client import Client, Patience
from pipelines import doctor
from pipelines.progress import Bar, ByteSteps
from pipelines.runner import Job, Options

PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: flowers, slug: flowers}}
kaggle: {{tries: 2, first_wait: 0.05, longest_wait: 3.0, stall: 200.0}}
"""


@pytest.fixture
def kaggle(tmp_path):
    (tmp_path / "server").mkdir()
    with FakeKaggle(tmp_path / "server") as server:
        noise = random.Random(0)
        files = {f"train/{n:02}.bin": noise.randbytes(1_000_000) for n in range(8)}
        server.contests["flowers"] = Contest({"sample_submission.csv": b"id,label\n", **files})
        yield server


@pytest.fixture
def environment(kaggle, tmp_path):
    (tmp_path / "home").mkdir()
    return kaggle.environment(tmp_path / "home")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    return Workspace(tmp_path)


def test_kills_while_unpacking_leave_nothing_that_grows(kaggle, place, environment):
    kills = 0
    for _ in range(12):
        process = subprocess.Popen(place.command("download"), cwd=ROOT, env=environment, stdout=-1, stderr=-1)
        while process.poll() is None:
            if any(path.suffix == ".bin" for path in place.work.rglob("train/*")):
                process.kill()
            time.sleep(0.001)
        process.communicate()
        if (place.work / "raw.json").exists():  # it was too late
            (place.work / "raw.json").unlink()
        else:
            kills += 1
        names = {path.name for path in place.work.iterdir()}
        assert names <= {"raw", "raw.lock", "raw.archive", ".raw.unfinished"}
        size = sum(path.stat().st_size for path in place.work.rglob("*") if path.is_file())
        assert size < 17_000_000  # the archive and its files once, 8 MB each
        if kills == 3:
            break
    assert kills == 3
    ran = place.run("download", **environment)
    assert ran.code == 0, ran.err
    assert {path.name for path in place.work.iterdir()} <= {"raw", "raw.json", "raw.lock"}
    assert len(list((place.work / "raw").rglob("*.bin"))) == 8


def test_what_earlier_versions_left_is_removed(place, environment):
    for name in (".raw.abc", "..raw.abc.unpacking"):
        (place.work / name).mkdir(parents=True)
        (place.work / name / "file").write_text("left")
    assert place.run("download", **environment).code == 0
    assert {path.name for path in place.work.iterdir()} <= {"raw", "raw.json", "raw.lock"}


def test_one_file_alone_is_to_look_at_and_is_no_finished_download(kaggle, place, environment):
    ran = place.run("download", "--only", "train/03.bin", **environment)
    assert ran.code == 0, ran.err
    assert "1 files, 1.0 MB in" in ran.out and "need all files: `make download` without ONLY" in ran.out
    file = place.work / "raw.only" / "train" / "03.bin"
    assert file.read_bytes() == kaggle.contests["flowers"].files["train/03.bin"]
    assert not (place.work / "raw").exists() and not (place.work / "raw.json").exists()
    assert "leave ONLY out" in place.refused("download", "--only", "x", sets="competition.slug=''")


def doctor_says(place, monkeypatch, environment):
    """The lines of the part of the doctor that asks Kaggle, and how it ends."""
    for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(doctor, "CHECKS", {"kaggle": doctor.kaggle})
    overrides = parse_overrides("")
    options = Options()
    job = Job(load_params(place.params, overrides), overrides, options, place.work, place.submissions)
    try:
        doctor.run(job)
        return job.echoed, ""
    except UserError as user_error:
        return job.echoed, str(user_error)


def test_the_doctor_says_that_all_is_well(place, monkeypatch, environment):
    said, end = doctor_says(place, monkeypatch, environment)
    assert [line[:5] for line in said] == ["ok   "] * 3 and end == ""
    assert said[1] == "ok    kaggle: Flowers: rules accepted, 5 submissions a day"


@pytest.mark.parametrize(
    ("fault", "fix"),
    [
        ("rules", "accept them at https://www.kaggle.com/competitions/flowers/rules"),
        ("404", "Kaggle knows no flowers (404 error 404): check the spelling"),
        ("403:Permission 'competitions.get' was denied", "does not let this account see flowers"),
        ("notebooks", "set kaggle.submit to notebook"),
    ],
)
def test_the_doctor_asks_about_the_competition(kaggle, place, monkeypatch, environment, fault, fix):
    if fault == "rules":
        kaggle.contests["flowers"].entered = False
    elif fault == "notebooks":
        kaggle.contests["flowers"].kernels_only = True
    else:
        kaggle.faults["GetCompetition"] = [fault]
    said, end = doctor_says(place, monkeypatch, environment)
    assert any(line.startswith("WRONG kaggle: ") for line in said)
    assert any(fix in line for line in said)
    assert "Kaggle answers; this week" in said[-1]  # the rest is still asked
    assert end == "1 error, each with its fix above"


def test_a_quota_that_cannot_be_asked_is_a_note(kaggle, place, monkeypatch, environment):
    kaggle.faults["GetAcceleratorQuotaStatistics"] = ["500"]
    said, end = doctor_says(place, monkeypatch, environment)
    assert said[-1].startswith("note  kaggle: could not read the weekly quota: Kaggle's server failed")
    assert end == ""


@pytest.mark.parametrize("token", ["KGAT_expired", "KGAT_planted-token-2"])
def test_the_doctor_knows_an_expired_token_long_before_the_stall_limit(kaggle, place, monkeypatch, environment, token):
    environment = {name: value for name, value in environment.items() if name not in {"KAGGLE_USERNAME", "KAGGLE_KEY"}}
    started = time.monotonic()
    said, end = doctor_says(place, monkeypatch, {**environment, "KAGGLE_API_TOKEN": token})
    assert time.monotonic() - started < 150  # seconds; kaggle.stall is 200
    expired = "Kaggle does not accept the credential from KAGGLE_API_TOKEN"
    assert any(expired in line for line in said) == (token == "KGAT_expired") == (end != "")


def test_the_bar_shows_bytes_a_second(kaggle, environment, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Bar, "is_terminal", True)
    kaggle.faults["archive"] = ["slow:0.06"]  # 40 pieces
    client = Client(environment, Patience(2, 0.05, 3.0, 60.0), print)
    with ByteSteps() as steps:
        download.download(client, "flowers", tmp_path / "cache", 200, steps.update)
    shown = capsys.readouterr().err
    assert "downloading: " in shown and "MB/s" in shown and "/8.00M" in shown
    assert "it/s" not in shown


def test_what_an_earlier_run_left_is_no_speed_of_this_one():
    with ByteSteps() as steps:
        steps.update("downloading", 900_000_000, 1_000_000_000)
        steps.update("downloading", 910_000_000, 1_000_000_000)
        line = Bar.format_meter(**{**steps.bar.format_dict, "elapsed": 10.0, "rate": None})
    assert "910M/1.00G" in line and "1.00MB/s" in line and "<01:30" in line
