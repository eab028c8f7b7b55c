"""`make download` and `make doctor` with the real Kaggle client and a fake Kaggle server."""

import random
import time
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from builders import ROOT
from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle
from fake_kaggle.small_competition import RULES
from stages import Workspace

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.images import decoded_cache
from competition.kaggle import download
from competition.kaggle.client import Client, RetryPolicy
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.inspect import doctor
from pipelines.main_job import prepare
from pipelines.terminal.options import Options
from pipelines.terminal.progress import Bar, ByteSteps
from pipelines.terminal.runner import Job, image_cache

PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: flowers, slug: flowers}}
kaggle: {{max_attempts: 2, first_wait: 0.05, longest_wait: 3.0, stall: 200.0}}
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
def workspace(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    return Workspace(tmp_path)


def test_what_a_killed_download_left_is_removed_by_the_next_one(workspace, environment):
    left = workspace.work / ".raw.unfinished" / "raw" / "train" / "99.bin"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a part")
    result = workspace.run("download", **environment)
    assert result.code == 0, result.err
    assert {path.name for path in workspace.work.iterdir()} <= {"raw", "raw.json", "raw.lock"}
    assert len(list((workspace.work / "raw").rglob("*.bin"))) == 8


def test_a_single_downloaded_file_does_not_count_as_a_complete_download(kaggle, workspace, environment):
    result = workspace.run("download", "--only", "train/03.bin", **environment)
    assert result.code == 0, result.err
    assert "1 file, 1.0 MB in" in result.out and "need all files: `make download` without ONLY" in result.out
    file = workspace.work / "raw.only" / "train" / "03.bin"
    assert file.read_bytes() == kaggle.contests["flowers"].files["train/03.bin"]
    assert not (workspace.work / "raw").exists() and not (workspace.work / "raw.json").exists()
    assert "leave ONLY out" in workspace.refused("download", "--only", "x", sets="competition.slug=''")


def doctor_output(workspace, monkeypatch, environment):
    """Return (messages, error message or "") of the Kaggle checks of the doctor."""
    for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(doctor, "CHECKS", (doctor.kaggle,))
    job = Job(LibraryWorkspace(workspace.work, load_params(workspace.params)), Options(), workspace.submissions)
    try:
        doctor.run(job)
    except UserError as user_error:
        return job.echoed, str(user_error)
    return job.echoed, ""


def test_the_doctor_reports_that_all_checks_pass(workspace, monkeypatch, environment):
    messages, error_message = doctor_output(workspace, monkeypatch, environment)
    assert [line[:5] for line in messages] == ["ok   "] * 4 and error_message == ""
    assert messages[1] == "ok    kaggle: Flowers: rules accepted; 5 submissions a day"


@pytest.mark.parametrize(
    ("fault", "fix"),
    [
        ("rules", "accept them at https://www.kaggle.com/competitions/flowers/rules"),
        ("404", "Kaggle knows no flowers (404 error 404): check the spelling"),
        ("notebooks", "set kaggle.submit to notebook"),
    ],
)
def test_the_doctor_checks_the_competition(kaggle, workspace, monkeypatch, environment, fault, fix):
    if fault == "rules":
        kaggle.contests["flowers"].entered = False
    elif fault == "notebooks":
        kaggle.contests["flowers"].kernels_only = True
    else:
        kaggle.faults["GetCompetition"] = [fault]
    messages, error_message = doctor_output(workspace, monkeypatch, environment)
    assert any(line.startswith("WRONG kaggle: ") for line in messages)
    assert any(fix in line for line in messages)
    assert "GPU: 30.0 h left of 30.0" in messages[-1]  # the remaining checks still run
    assert error_message == "1 error, each with its fix above"


def test_a_quota_that_cannot_be_read_is_reported_as_a_note(kaggle, workspace, monkeypatch, environment):
    kaggle.faults["GetAcceleratorQuotaStatistics"] = ["500"]
    messages, error_message = doctor_output(workspace, monkeypatch, environment)
    assert messages[-1].startswith("note  kaggle: could not read the weekly quota: Kaggle's server failed")
    assert error_message == ""


def test_the_doctor_reports_an_expired_token_well_before_the_stall_limit(kaggle, workspace, monkeypatch, environment):
    environment = {name: value for name, value in environment.items() if name not in {"KAGGLE_USERNAME", "KAGGLE_KEY"}}
    started = time.monotonic()
    messages, error_message = doctor_output(workspace, monkeypatch, {**environment, "KAGGLE_API_TOKEN": "KGAT_expired"})
    assert time.monotonic() - started < 150  # seconds; kaggle.stall is 200
    expired = "Kaggle does not accept the credential from KAGGLE_API_TOKEN"
    assert any(expired in line for line in messages) and error_message


def test_the_progress_bar_shows_bytes_per_second(kaggle, environment, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Bar, "is_terminal", True)
    kaggle.faults["archive"] = ["slow:0.05"]  # 40 pieces
    client = Client(environment, RetryPolicy(2, 0.05, 3.0, 60.0), print)
    with ByteSteps() as steps:
        download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache", RULES, steps.update)
    output = capsys.readouterr().err
    assert "downloading" in output and "MB/s" in output and "/8.0 MB" in output


def disk_with(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))


def test_the_disk_for_the_records_is_known_before_the_first_is_written(workspace, monkeypatch) -> None:
    table, data = pd.DataFrame({"bytes": [2_000_000_000, 1_500_000_000]}), workspace.folder / "work" / "data"
    disk_with(monkeypatch, free=3_600_000_000)
    prepare.require_disk_space(table, data)
    disk_with(monkeypatch, free=3_400_000_000)
    with pytest.raises(UserError, match=r"the records of 2 images need 3.5 GB, 3.4 GB are free in .*: free disk space"):
        prepare.require_disk_space(table, data)


@pytest.mark.parametrize(
    ("free", "sets", "lines"),
    [
        (30_000_000_000, "cache.disk_gigabytes=40", ["decoded images of 16 px take 0.0 GB, 29.0 GB may be used on disk"]),
        (30_000_000_000, "members.slim.image_size=4096", ["decoded images of 16 px", "of 4096 px take 30.2 GB, only 29.0 GB may be"]),
        (900_000_000, "cache.ram_gigabytes=0", ["take 0.0 GB, only 0.0 GB may be used on disk: every epoch will decode"]),
    ],
)  # fmt: skip
def test_the_doctor_says_whether_the_decoded_images_will_fit(finished, monkeypatch, free, sets, lines) -> None:
    overrides = parse_overrides(sets)
    library = LibraryWorkspace(finished.work, load_params(finished.params, overrides), overrides)
    disk_with(monkeypatch, free)
    monkeypatch.setattr(decoded_cache, "LEFT_FREE", 1_000_000_000)
    monkeypatch.setattr(
        "pipelines.inspect.doctor.image_cache", lambda job: replace(image_cache(job), folder=job.work / "none")
    )
    findings = list(doctor.decoded_images(Job(library, Options(), finished.submissions)))
    assert len(findings) == len(lines)
    assert all(line in finding.what and finding.unsure == ("only" in line) for line, finding in zip(lines, findings))
