"""`make download` and `make doctor` with the real Kaggle client and a fake Kaggle server."""

import functools
import random
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from builders import ROOT, params
from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle
from stages import Workspace

from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.prepare.adapter_types import Settings
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
    assert "download: 9 files" in result.out  # with the sample submission, which was downloaded


@pytest.mark.parametrize("has_sample", [True, False])
@pytest.mark.parametrize("form", ["folder", "zip"])
def test_a_sample_submission_counts_as_a_file_of_the_source_only_if_it_is_one(tmp_path, form, has_sample) -> None:
    names = ["photos/a.jpg", *(["photos/sample_submission.csv"] if has_sample else [])]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    source = tmp_path / "photos"
    if form == "zip":
        source = Path(shutil.make_archive(str(source), "zip", tmp_path, "photos"))
    settings = Settings(**{**asdict(params().competition), "source": str(source), "slug": ""}, seed=0)
    (sample := tmp_path / "sample_submission.csv").touch()
    assert download.is_written_here(sample, settings) is not has_sample


def test_a_single_downloaded_file_does_not_count_as_a_complete_download(kaggle, workspace, environment):
    result = workspace.run("download", "--only", "train/03.bin", **environment)
    assert result.code == 0, result.err
    file = workspace.work / "raw.only" / "train" / "03.bin"
    assert file.read_bytes() == kaggle.contests["flowers"].files["train/03.bin"]
    assert not (workspace.work / "raw").exists() and not (workspace.work / "raw.json").exists()


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


def test_the_doctor_reports_an_expired_token_well_before_the_stall_limit(kaggle, workspace, monkeypatch, environment):
    environment = {name: value for name, value in environment.items() if name not in {"KAGGLE_USERNAME", "KAGGLE_KEY"}}
    started = time.monotonic()
    messages, error_message = doctor_output(workspace, monkeypatch, {**environment, "KAGGLE_API_TOKEN": "KGAT_expired"})
    assert time.monotonic() - started < 150  # seconds; kaggle.stall is 200
    expired = "Kaggle does not accept the credential from KAGGLE_API_TOKEN"
    assert any(expired in line for line in messages) and error_message


def test_the_disk_for_the_records_is_known_before_the_first_is_written(workspace, monkeypatch) -> None:
    table, data = pd.DataFrame({"bytes": [2_000_000_000, 1_500_000_000]}), workspace.folder / "work" / "data"
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=3_600_000_000))
    prepare.require_disk_space(table, data)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=3_400_000_000))
    with pytest.raises(UserError, match=r"the records of 2 images need 3.5 GB, 3.4 GB are free in .*: free disk space"):
        prepare.require_disk_space(table, data)


def test_in_a_kaggle_notebook_the_attached_folder_is_used_without_a_download(tmp_path, monkeypatch) -> None:
    attached = tmp_path / "input" / "competitions" / "plants"
    attached.mkdir(parents=True)
    (attached / "sample_submission.csv").write_text("id,label\na,0\n")
    monkeypatch.setattr(storage, "find_inputs", functools.partial(storage.find_inputs, root=str(tmp_path / "input")))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    for credential in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"):  # a request to Kaggle would fail
        monkeypatch.delenv(credential, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    parameters = params("competition.name=x competition.adapter=flowers competition.slug=flowers")
    job = Job(LibraryWorkspace(work, parameters), Options(force=False, debug=False), tmp_path)
    download.run(job)
    assert (work / "raw" / "sample_submission.csv").read_text() == "id,label\na,0\n"
