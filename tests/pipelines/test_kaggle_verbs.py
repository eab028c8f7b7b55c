"""The verbs that use Kaggle, with the real client and a fake server: faults never lead to a second submission or session.

What Kaggle answers with status 200 is shown, but no credential in it, and it moves no cursor and looks like no line of goldfold.
"""

import base64
import functools
import json
import re
import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pandas as pd
import pytest
from builders import ROOT, files_below, params
from fake_kaggle.fixtures import home as home
from fake_kaggle.fixtures import kaggle as kaggle
from fake_kaggle.parts import FILES, Contest, Run
from light import CSV, DIGEST, running_kaggle
from stages import new_workspace

from competition.config.errors import UserError
from competition.input_pipeline import decoded_cache
from competition.kernels import request
from competition.storage import locations as storage
from competition.submission import ledger
from competition.workspace import runs
from competition.workspace.dependencies import fold_manifest_path
from pipelines.inspect import doctor
from pipelines.main_job import prepare


@pytest.fixture
def kaggle_setup(tmp_path):
    with running_kaggle(tmp_path) as setup:
        setup.kaggle._run_kernel = lambda run: setattr(run, "status", "COMPLETE")  # the tests write its output
        yield setup


def killed_during_a_slow_response(kaggle_setup, verb: str, call: str, unlisted_looks: int, message: str) -> None:
    """Kill a verb after Kaggle got its request and before the response.

    message: why the same verb is refused at the same time.  unlisted_looks: how often Kaggle's list lacks what it got.
    """
    kaggle_setup.kaggle.faults[call] = ["after:hold"]
    kaggle_setup.kaggle.unlisted_looks = unlisted_looks

    def kill(process: ForkServerProcess) -> None:
        assert kaggle_setup.kaggle.held.wait(300)
        assert message.format(process.pid) in kaggle_setup.refused(verb)
        process.kill()

    assert kaggle_setup.run_meanwhile(kill, verb).code == -signal.SIGKILL
    kaggle_setup.kaggle.released.set()


def test_a_submission_is_found_after_submit_was_killed_during_a_slow_response(kaggle_setup) -> None:
    message = "another `make submit` of small is running, nothing was sent: "
    killed_during_a_slow_response(kaggle_setup, "submit", "CreateSubmission", 1, message)
    assert kaggle_setup.events() == [("sending", "")]
    output = kaggle_setup.do("submit")
    assert "the answer to a submission was lost; looking for it in Kaggle's list" in output
    assert [one["sha256"] for one in kaggle_setup.kaggle.submissions] == [DIGEST]
    assert [kind for kind, _ in kaggle_setup.events()] == ["sending", "submitted", "scored"]


def test_a_submission_that_kaggle_cannot_score_is_an_error_each_time(kaggle_setup) -> None:
    kaggle_setup.kaggle.contests["flowers"].score = lambda data: ("ERROR", "", "", "Submission must have 7382 rows.")
    for _ in range(2):
        assert "Submission must have 7382 rows; AGAIN=1 sends" in kaggle_setup.refused("submit")
    assert [one["sha256"] for one in kaggle_setup.kaggle.submissions] == [DIGEST]


def test_the_table_shows_all_submissions_on_kaggle_although_the_limits_cannot_be_read(kaggle_setup) -> None:
    lost = ledger.Event(DIGEST, "sending", "", None, None, "", "2026-01-01T00:00:00+00:00")  # the response was
    ledger.append(kaggle_setup.workspace.submissions / "ledger.jsonl", lost)
    own_message, other_message = f"two members | goldfold {DIGEST[:16]}", "by hand"
    for data, name, message in ((CSV, "x.csv", own_message), (b"2", "mine\x1b[2J.csv", other_message)):
        request = {"competitionName": "flowers", "submissionDescription": message}
        kaggle_setup.kaggle._submitted(request, data, name)
    kaggle_setup.kaggle.pending_polls = -1
    kaggle_setup.kaggle.faults["GetSubmissionLimits"] = ["500"] * 9
    result = kaggle_setup.run("submissions")
    assert [kind for kind, _ in kaggle_setup.events()] == ["sending", "submitted", "scored"]
    (own_line,) = [line for line in result.out.splitlines() if line.startswith(DIGEST[:12])]
    assert "0.90000" in own_line and own_line.endswith("scored") and "mine?[2J.csv (made elsewhere)" in result.out
    assert result.code == 1 and "the table is complete, but today's limit is missing: " in result.err


def test_a_late_score_and_one_that_kaggle_changes_later_are_recorded_and_shown(kaggle_setup) -> None:
    kaggle_setup.kaggle.pending_polls = 10**9
    assert "has no score yet" in kaggle_setup.do("submit", sets="kaggle.score_wait=0")
    kaggle_setup.kaggle.pending_polls = 0
    assert "+0.0000" in kaggle_setup.do("submissions")  # the public score minus the honest one
    (sent,) = kaggle_setup.kaggle.submissions
    sent["final"] = ("COMPLETE", "0.7", "0.65", "")  # after the deadline
    assert "0.65000" in kaggle_setup.do("submissions")
    recorded = kaggle_setup.events()
    kaggle_setup.do("submissions")  # nothing new
    assert kaggle_setup.events() == recorded and len(recorded) == 4
    assert "scored before as" in (output := kaggle_setup.do("submit")) and "public 0.70000" in output
    assert [one["sha256"] for one in kaggle_setup.kaggle.submissions] == [DIGEST]


def test_a_kernel_is_found_after_its_push_was_killed_during_a_slow_response(kaggle_setup) -> None:
    killed_during_a_slow_response(kaggle_setup, "kernel", "SaveKernel", 2, "is in use by process {} on ")
    name = json.loads((kaggle_setup.workspace.work / "kernel" / "run.json").read_text())["run"]
    (run,), listing = kaggle_setup.kaggle.kernels["ada/goldfold-small"], {"run": name, "status": "done", "code": 0}
    listing |= {"problem": "", "devices": "", "archives": [], "seconds": 1}
    (run.folder / "working").mkdir(parents=True)
    (run.folder / "working" / "goldfold-output.json").write_text(json.dumps(listing))
    assert f"resuming run {name}, version 1" in kaggle_setup.do("kernel")
    assert kaggle_setup.kaggle.count("SaveKernel") == 1


def test_a_push_with_unknown_outcome_is_repeated_only_on_request(kaggle_setup) -> None:
    kaggle_setup.kaggle.faults["SaveKernel"] = ["503"]
    error = kaggle_setup.refused("kernel", sets="kaggle.listing_lag=0")
    assert "it is unknown whether Kaggle runs ada/goldfold-small" in error
    assert '`make kernel SET="kaggle.listing_lag=0" AGAIN=1` pushes' in error
    assert kaggle_setup.kaggle.count("SaveKernel") == 1
    assert "left no goldfold-output.json" in kaggle_setup.refused("kernel", "--again")
    assert kaggle_setup.kaggle.count("SaveKernel") == 2


def test_only_unfinished_fold_models_with_a_checkpoint_are_sent_with_the_kernel(tmp_path) -> None:
    parameters = params("prepare.folds=2")
    folder = tmp_path / "members" / "cnn" / "0123456789ab"
    run = runs.Run("cnn", parameters.members["cnn"], {}, "", folder, {}, "cnn")
    for fold, name in enumerate(("checkpoints/1.json", "notes.json")):
        file = fold_manifest_path(run, fold).parent / name
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    result_folders = request.results_to_resume(tmp_path, parameters, {"cnn": [run]}, {"cnn": [0, 1]})
    assert [result_folder.split("/")[-1] for result_folder in result_folders] == ["fold0"]


def test_what_the_server_echoes_shows_no_credential_and_looks_like_no_line_of_goldfold(tmp_path: Path) -> None:
    """It echoes the key, control characters and a line like goldfold's in every text."""
    with running_kaggle(tmp_path) as setup:
        kaggle = setup.kaggle
        basic = base64.b64encode(f"{kaggle.username}:{kaggle.key}".encode()).decode()
        credentials = (kaggle.key, basic, quote(kaggle.key, safe=""))  # as it is, as it is sent, in an address
        echoed = f"{kaggle.key} Basic {basic} {credentials[2]} \x1b[2J\x9b1m\r\nFAKE: scored public 0.99"
        kaggle.contests["flowers"] = Contest(
            FILES,
            title=f"Flowers {echoed}",
            leaderboard=((f"Eve {echoed}", f"0.99 {echoed}"), ("Ada's team", "0.98"), ("Alan", "0.97")),
            score=lambda data: ("ERROR", "", "", f"wrong {echoed}"),
        )
        assert "Kaggle does not let this account see ada/goldfold-small" in setup.refused("kernel_status")
        log = [f"epoch 1 {echoed}\n", "\x1b]0;title\x07\n", "out of memory\n"]
        run = Run({}, kaggle.folder / "v1", "ERROR", f"Your code exited with 1 {echoed}", log)
        kaggle.kernels["ada/goldfold-small"].append(run)
        calls = ("leaderboard", "download", "submit", "submissions", "leaderboard", "leaderboard --top 1")
        calls += ("kernel_status", "kernel_status --log", "quota")
        results = [setup.run(*call.split()) for call in calls]
        kaggle.faults["GetCompetition"] = ["400"] * 9
        results.append(setup.run("download"))
    outputs, folder = [result.out + result.err for result in results], setup.workspace.folder
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".zip", ".tfrec")]
    text = "".join([*outputs, *(path.read_text(errors="replace") for path in files), *map(str, folder.rglob("*"))])
    assert [form for form in credentials if form in text] == [] and text.count("[hidden]") >= 5
    assert not any(character in "".join(outputs) for character in "\x1b\x9b\x07\r")
    assert "FAKE: scored" in "".join(outputs)
    assert not [line for output in outputs for line in output.splitlines() if line.startswith("FAKE")]
    # The rank of this team, the state and log of the kernel and the quota.
    before, *_, after, top, status, log, quota, _ = outputs
    assert "this account has submitted nothing yet" in before
    assert "Ada's team  <- this team\n" in after and "leaderboard: Ada's team is number 2 of 3" in after
    assert "Kaggle does not return the rank of Ada's team, which is not among these rows" in top
    assert all("kernel: ada/goldfold-small: ERROR (Your code exited with 1 " in output for output in (status, log))
    assert "kernel | epoch 1 " in log and "kernel | out of memory" in log.splitlines()
    assert "quota: TPU: 19.0 h left of 20.0" in quota.splitlines()


PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: flowers, slug: flowers}}
kaggle: {{max_attempts: 2, first_wait: 0.05, longest_wait: 3.0, stall: 200.0}}
"""


def without_credentials(monkeypatch) -> None:
    for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def workspace(tmp_path):
    return new_workspace(tmp_path, PARAMS)


def test_what_a_killed_download_left_is_removed(kaggle, workspace, home):
    left = workspace.work / ".raw.unfinished" / "raw" / "train" / "99.tfrec"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a part")
    output = workspace.do_in_one_process("download", **kaggle.environment(home))
    assert {path.name for path in workspace.work.iterdir()} <= {"raw", "raw.json", "raw.lock"}
    assert files_below(workspace.work / "raw") == kaggle.contests["flowers"].files
    assert "download: 2 files and sample_submission.csv, " in output


def test_the_doctor_says_that_nothing_sees_the_tpu_of_this_machine(monkeypatch) -> None:
    monkeypatch.setenv("ISTPUVM", "1")
    process = SimpleNamespace(communicate=lambda: ('["CPU"]', ""), returncode=0)
    machine, *_, problem = doctor.device_findings({"tensorflow": process, "jax": process})
    assert machine.what.endswith(", with a TPU") and "neither TensorFlow nor JAX sees it" in problem.what


def test_the_doctor_checks_competition_and_credential(kaggle, workspace, monkeypatch, home) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (doctor.kaggle,))
    contest, token = kaggle.contests["flowers"], {"KAGGLE_API_TOKEN": "KGAT_expired"}
    without_credentials(monkeypatch)
    for entered, notebooks, variables, fix in (
        (False, False, {}, "accept them at https://www.kaggle.com/competitions/flowers/rules"),
        (True, True, {}, "set kaggle.submit to notebook"),
        (True, False, token, "Kaggle does not accept the credential from KAGGLE_API_TOKEN"),
    ):
        contest.entered, contest.kernels_only = entered, notebooks
        for name, value in kaggle.environment(home, **variables).items():
            monkeypatch.setenv(name, value)
        job = workspace.job()
        with pytest.raises(UserError, match="each with its fix above"):
            doctor.run(job)
        text = "\n".join(job.echoed)
        assert "WRONG kaggle: " in text and fix in text
        assert variables or "GPU: 30.0 h left of 30.0" in job.echoed[-1]  # the remaining checks still run


def test_whether_the_records_and_the_decoded_images_fit_on_the_disk_is_known_before(finished, tmp_path, monkeypatch):
    table = pd.DataFrame({"bytes": [2_000_000_000, 1_500_000_000]})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=3_600_000_000))
    prepare.require_disk_space(table, tmp_path / "data")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=3_400_000_000))
    with pytest.raises(UserError, match=r"the records of 2 images need 3.5 GB, 3.4 GB are free in .*: free disk space"):
        prepare.require_disk_space(table, tmp_path / "data")
    monkeypatch.setattr(decoded_cache, "LEFT_FREE", 1_000_000_000)
    for free, sets, sizes_that_fit in (  # 600 images of 4096 px take 30.2 GB
        (30_000_000_000, "cache.disk_gigabytes=40 members.slim.image_size=4096", {"16": True, "4096": False}),
        (900_000_000, "cache.ram_gigabytes=0", {"16": False}),
    ):
        monkeypatch.setattr("shutil.disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        found = doctor.decoded_images(finished.job(f"cache.folder={tmp_path}/cache {sets}"))
        assert {re.findall(r"of (\d+) px", one.what)[0]: not one.unsure for one in found} == sizes_that_fit


def test_in_a_kaggle_notebook_the_attached_folder_is_used_without_a_download(workspace, tmp_path, monkeypatch) -> None:
    attached = tmp_path / "input" / "competitions" / "plants"
    attached.mkdir(parents=True)
    (attached / "sample_submission.csv").write_text("id,label\na,0\n")
    monkeypatch.setattr(storage, "find_inputs", functools.partial(storage.find_inputs, root=str(tmp_path / "input")))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    without_credentials(monkeypatch)  # a request to Kaggle would fail
    monkeypatch.setenv("HOME", str(tmp_path))
    workspace.here("download")
    assert (workspace.work / "raw" / "sample_submission.csv").read_text() == "id,label\na,0\n"
