"""A fold model in training through stops, kills, a full disk, damage and a second process ends with the same weights."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from builders import ROOT
from injection import KILLED, environment, run_stage
from stages import StageResult, Workspace, new_workspace

FOLD0 = ("train", "--member", "slim", "--fold", "0")


def checkpoints(workspace: Workspace) -> list[Path]:
    """The complete checkpoints of slim fold 0, the newest last."""
    return sorted(workspace.work.glob("members/slim/*/fold0/checkpoints/step-*.json"))


def faulty(workspace: Workspace, faults: str, code: int = KILLED) -> StageResult:
    """Train slim fold 0 with faults, expect this exit code, and that no complete checkpoint was lost."""
    before = checkpoints(workspace)
    result = run_stage(workspace, faults, *FOLD0)
    assert result.code == code and "Traceback" not in result.err, result
    assert checkpoints(workspace)[-1:] >= before[-1:]
    return result


def finish(workspace: Workspace, finished: Workspace) -> None:
    result = workspace.run(*FOLD0)
    assert result.code == 0, result
    assert workspace.weights() == {"slim/fold0": finished.weights()["slim/fold0"]}
    names = {path.name for path in workspace.fold("slim", 0).rglob("*") if path.suffix != ".lock"}
    assert names == {"manifest.json", "weights.npz", "oof.npz", "history.csv"}  # no checkpoint, no temporary file


def test_a_killed_fold_model_with_a_damaged_checkpoint_ends_with_the_same_weights(finished, untrained) -> None:
    faulty(untrained, "file.before_rename@*/checkpoints/*.json:2:kill")
    newest = checkpoints(untrained)[-1].with_suffix(".npz")
    newest.write_bytes(newest.read_bytes()[:-50] + b"damaged")
    result = faulty(untrained, "file.before_rename@*/fold0/weights.npz:1:kill")
    assert f"checkpoint {newest.stem} in" in result.out and "is damaged and not used" in result.out
    assert "(train slim fold 0) was killed or crashed" in result.out
    finish(untrained, finished)


@pytest.mark.soak
def test_a_fold_model_survives_every_fault_and_ends_with_the_same_weights(finished, untrained) -> None:
    for faults, code, words in (
        ("train.after_steps:2:kill", KILLED, ""),
        ("train.after_steps:2:int", 130, "the same command resumes from it"),
        ("train.after_steps:1:int checkpoint.before_arrays:1:int", 130, "run the same command again to continue"),
        ("train.after_steps:1:term", 143, "the same command resumes from it"),
        ("file.before_sync@*/checkpoints/*.npz:1:full", 4, "goldfold: the disk is full"),
        ("train.after_steps:1:memory", 1, "the memory of this machine is used up; lower train.batch"),
        ("checkpoint.before_arrays:1:kill", KILLED, ""),
        ("file.before_rename@*/checkpoints/*.npz:1:kill", KILLED, ""),
        ("checkpoint.before_facts:1:kill", KILLED, ""),
        ("file.before_rename@*/checkpoints/*.json:1:kill", KILLED, ""),
        ("checkpoint.before_cleanup:1:kill", KILLED, ""),
        ("train.after_steps:1:crash", -signal.SIGSEGV, "in train_fold"),
        ("fold.before_weights:1:kill", KILLED, "(train slim fold 0) was killed or crashed"),
        ("file.before_rename@*/weights.npz:1:kill", KILLED, ""),
        ("fold.before_predictions:1:kill", KILLED, ""),
        ("file.before_rename@*/oof.npz:1:kill", KILLED, ""),
        ("result.before_manifest:1:kill", KILLED, ""),
        ("file.before_rename@*/fold0/manifest.json:1:kill", KILLED, ""),
        ("result.after_manifest:1:kill", KILLED, ""),
    ):
        result = faulty(untrained, faults, code)
        assert words in result.out + result.err, result
    finish(untrained, finished)


@pytest.mark.soak
def test_a_folder_that_is_removed_while_its_model_is_trained_costs_one_more_run(finished, untrained) -> None:
    trace, end = untrained.folder / "points", time.monotonic() + 200
    process = subprocess.Popen(
        untrained.command(*FOLD0), cwd=ROOT, stdout=-1, stderr=-1, text=True,
        env=environment(GOLDFOLD_POINTS=str(trace)),
    )  # fmt: skip
    while not trace.exists() or "checkpoint.before_cleanup" not in trace.read_text():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    shutil.rmtree(untrained.work / "members", ignore_errors=True)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 or (err.startswith("goldfold: ") and "Traceback" not in err), out + err
    finish(untrained, finished)


@pytest.mark.parametrize("place", ["work", "submissions"])
def test_a_file_in_place_of_a_folder_is_reported_before_anything_is_trained(tmp_path: Path, place: str) -> None:
    workspace = new_workspace(tmp_path)
    (tmp_path / place).write_text("not a folder")
    assert f"{tmp_path / place} is not a folder" in workspace.refused("train")
    assert (tmp_path / place).read_text() == "not a folder"


# Root writes into read-only folders, too, unless it gives up that capability.
WITHOUT_ROOT = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")


@pytest.mark.skipif(
    not os.geteuid() and not shutil.which("setpriv"), reason="root may write everywhere without setpriv"
)
def test_a_read_only_folder_is_reported_before_anything_is_trained(tmp_path: Path) -> None:
    workspace = new_workspace(tmp_path)
    (tmp_path / "submissions").mkdir(mode=0o500)
    command = [*WITHOUT_ROOT, *workspace.command("train")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    remedy = "make it writable, or choose another folder (--work, --submissions)"
    assert result.stderr == f"goldfold: {tmp_path}/submissions cannot be written; {remedy}\n" and result.returncode == 1
    assert not (tmp_path / "work").exists()
