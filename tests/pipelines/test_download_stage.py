"""`make download` and `make doctor` with the real Kaggle client and a fake Kaggle server, and what fits on the disk."""

import functools
import random
import time
from types import SimpleNamespace

import pandas as pd
import pytest
from builders import ROOT, params
from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle
from stages import new_workspace

from competition.config.errors import UserError
from competition.images import decoded_cache
from competition.storage import locations as storage
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.inspect import doctor
from pipelines.main_job import download, prepare
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job

PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: flowers, slug: flowers}}
kaggle: {{max_attempts: 2, first_wait: 0.05, longest_wait: 3.0, stall: 200.0}}
"""
CREDENTIALS = ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY")


def without_credentials(monkeypatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def kaggle(tmp_path):
    for name in ("server", "home"):
        (tmp_path / name).mkdir()
    with FakeKaggle(tmp_path / "server") as server:
        noise = random.Random(0)
        files = {f"train/{n:02}.bin": noise.randbytes(100_000) for n in range(8)}
        server.contests["flowers"] = Contest({"sample_submission.csv": b"id,label\n", **files})
        yield server


@pytest.fixture
def workspace(tmp_path):
    return new_workspace(tmp_path, PARAMS)


def test_a_single_file_is_no_complete_download_and_what_a_killed_one_left_is_removed(kaggle, workspace, tmp_path):
    environment = kaggle.environment(tmp_path / "home")
    result = workspace.run("download", "--only", "train/03.bin", **environment)
    assert result.code == 0, result.err
    file = workspace.work / "raw.only" / "train" / "03.bin"
    assert file.read_bytes() == kaggle.contests["flowers"].files["train/03.bin"]
    assert not (workspace.work / "raw").exists() and not (workspace.work / "raw.json").exists()
    left = workspace.work / ".raw.unfinished" / "raw" / "train" / "99.bin"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a part")
    result = workspace.run("download", **environment)
    assert result.code == 0, result.err
    assert {path.name for path in workspace.work.iterdir()} <= {"raw", "raw.json", "raw.lock", "raw.only"}
    assert len(list((workspace.work / "raw").rglob("*.bin"))) == 8
    assert "download: 9 files" in result.out  # with the sample submission, which was downloaded


def test_the_doctor_checks_competition_and_credential(kaggle, workspace, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (doctor.kaggle,))
    environment = kaggle.environment(tmp_path / "home")
    contest, expired = kaggle.contests["flowers"], {"KAGGLE_API_TOKEN": "KGAT_expired"}
    for fault, fix in (
        ("rules", "accept them at https://www.kaggle.com/competitions/flowers/rules"),
        ("404", "Kaggle knows no flowers (404 error 404): check the spelling"),
        ("notebooks", "set kaggle.submit to notebook"),
        ("token", "Kaggle does not accept the credential from KAGGLE_API_TOKEN"),
    ):
        contest.entered, contest.kernels_only = fault != "rules", fault == "notebooks"
        kaggle.faults["GetCompetition"] = [fault] * (fault == "404")
        without_credentials(monkeypatch)
        without = {name: value for name, value in environment.items() if name not in CREDENTIALS}
        for name, value in ({**without, **expired} if fault == "token" else environment).items():
            monkeypatch.setenv(name, value)
        job, started = workspace.job(), time.monotonic()
        with pytest.raises(UserError, match="each with its fix above"):
            doctor.run(job)
        assert time.monotonic() - started < 150  # seconds; kaggle.stall is 200
        assert any(line.startswith("WRONG kaggle: ") for line in job.echoed) and any(fix in line for line in job.echoed)
        assert fault == "token" or "GPU: 30.0 h left of 30.0" in job.echoed[-1]  # the remaining checks still run


def test_the_disk_for_the_records_is_known_before_the_first_is_written(workspace, monkeypatch) -> None:
    table, data = pd.DataFrame({"bytes": [2_000_000_000, 1_500_000_000]}), workspace.folder / "work" / "data"
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=3_600_000_000))
    prepare.require_disk_space(table, data)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=3_400_000_000))
    with pytest.raises(UserError, match=r"the records of 2 images need 3.5 GB, 3.4 GB are free in .*: free disk space"):
        prepare.require_disk_space(table, data)


def test_the_doctor_says_whether_the_decoded_images_will_fit(finished, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(decoded_cache, "LEFT_FREE", 1_000_000_000)

    def findings(free: int, sets: str) -> list[doctor.Finding]:
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))
        return list(doctor.decoded_images(finished.job(f"cache.folder={tmp_path}/cache {sets}")))

    small, large = findings(30_000_000_000, "cache.disk_gigabytes=40 members.slim.image_size=4096")
    assert "of 16 px take 0.0 GB, 29.0 GB may be used on disk" in small.what and not small.unsure
    assert "of 4096 px take 30.2 GB, only 29.0 GB may be" in large.what and large.unsure
    (one,) = findings(900_000_000, "cache.ram_gigabytes=0")
    assert "take 0.0 GB, only 0.0 GB may be used on disk: every epoch will decode" in one.what and one.unsure


def test_in_a_kaggle_notebook_the_attached_folder_is_used_without_a_download(tmp_path, monkeypatch) -> None:
    attached, work = tmp_path / "input" / "competitions" / "plants", tmp_path / "work"
    attached.mkdir(parents=True)
    work.mkdir()
    (attached / "sample_submission.csv").write_text("id,label\na,0\n")
    monkeypatch.setattr(storage, "find_inputs", functools.partial(storage.find_inputs, root=str(tmp_path / "input")))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    without_credentials(monkeypatch)  # a request to Kaggle would fail
    monkeypatch.setenv("HOME", str(tmp_path))
    parameters = params("competition.name=x competition.adapter=flowers competition.slug=flowers")
    download.run(Job(LibraryWorkspace(work, parameters), Options(), tmp_path))
    assert (work / "raw" / "sample_submission.csv").read_text() == "id,label\na,0\n"
