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


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def has_weights_of(workspace: Workspace, finished: Workspace) -> bool:
    return workspace.weights() == {"slim/fold0": finished.weights()["slim/fold0"]}


def stopped_by_ctrl_c(workspace: Workspace) -> None:
    stopped = run_stage(workspace, "train.after_steps:2:int", *FOLD0)
    assert stopped.code == 130 and "the same command resumes from it" in stopped.out, stopped
    assert len(checkpoints(workspace)) >= 1


def stopped_at_once_by_a_second_ctrl_c(workspace: Workspace) -> None:
    before = checkpoints(workspace)
    stopped = run_stage(workspace, "train.after_steps:1:int checkpoint.before_arrays:1:int", *FOLD0)
    assert stopped.code == 130 and "stopped; run the same command again to continue" in stopped.err, stopped
    # The thread that writes a checkpoint may finish it before the process ends; half of one never counts.
    assert checkpoints(workspace)[-1] >= before[-1]


def stopped_by_sigterm(workspace: Workspace) -> None:
    stopped = run_stage(workspace, "train.after_steps:1:term", *FOLD0)
    assert stopped.code == 143 and "the same command resumes from it" in stopped.out, stopped


def without_disk_space(workspace: Workspace) -> None:
    before = checkpoints(workspace)
    full = run_stage(workspace, "file.before_sync@*/checkpoints/*.npz:1:full", *FOLD0)
    assert full.code == 4 and "goldfold: the disk is full" in full.err and "Traceback" not in full.err, full
    assert checkpoints(workspace) == before and not list(workspace.work.glob("members/slim/*/fold0/weights.npz"))


def without_memory(workspace: Workspace) -> None:
    result = run_stage(workspace, "train.after_steps:1:memory", *FOLD0)
    assert result.code == 1 and "the memory of this machine is used up; lower train.batch" in result.err, result


def killed(fault: str) -> object:
    def step(workspace: Workspace) -> None:
        result = run_stage(workspace, f"{fault}:kill", *FOLD0)
        assert result.code == KILLED, result

    return step


def crashed(workspace: Workspace) -> None:
    """A crash names its Python stack; the next command trains the other folds first."""
    result = run_stage(workspace, "train.after_steps:1:crash", *FOLD0)
    assert result.code == -signal.SIGSEGV and "Fatal Python error: Segmentation fault" in result.err, result
    assert "in train_fold" in result.err


def with_a_damaged_checkpoint(workspace: Workspace) -> None:
    """The newest checkpoint is not used and named; the holder that was killed before is named too."""
    newest = checkpoints(workspace)[-1].with_suffix(".npz")
    flip_a_bit(newest)
    result = run_stage(workspace, "fold.before_weights:1:kill", *FOLD0)
    assert result.code == KILLED, result
    assert f"checkpoint {newest.stem} in" in result.out and "is damaged and not used" in result.out
    assert "(train slim fold 0) was killed or crashed" in result.out


def held_by_another_process(workspace: Workspace) -> None:
    """A second process waits, and says for whom; when that one is killed, its lock is taken over."""
    trace = workspace.folder / "points"
    holder = subprocess.Popen(
        workspace.command(*FOLD0), cwd=ROOT, stdout=-1, stderr=-1, text=True,
        env=environment("train.after_steps:1:wait", GOLDFOLD_POINTS=str(trace)),
    )  # fmt: skip
    wait_for(lambda: trace.exists() and "train.after_steps" in trace.read_text(), holder)
    second = subprocess.Popen(workspace.command(*FOLD0), cwd=ROOT, stdout=-1, text=True)
    assert second.stdout is not None
    line = next(line for line in second.stdout if "waiting for fold 0" in line)
    assert f"is in use by process {holder.pid} on " in line and "(train slim fold 0)" in line
    holder.kill()
    holder.communicate()
    second.communicate(timeout=200)
    assert second.returncode == 0


def wait_for(condition, process: "subprocess.Popen[str]", seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def finish(workspace: Workspace, finished: Workspace) -> StageResult:
    result = workspace.run(*FOLD0)
    assert result.code == 0, result
    assert has_weights_of(workspace, finished)
    assert not checkpoints(workspace) and not list(workspace.fold("slim", 0).glob(".*"))
    return result


def test_a_killed_fold_model_with_a_damaged_checkpoint_ends_with_the_same_weights(finished, untrained) -> None:
    killed("checkpoint.before_facts:2")(untrained)
    with_a_damaged_checkpoint(untrained)
    finish(untrained, finished)


STEPS = (
    killed("train.after_steps:2"),
    stopped_by_ctrl_c,
    stopped_at_once_by_a_second_ctrl_c,
    stopped_by_sigterm,
    without_disk_space,
    without_memory,
    killed("checkpoint.before_arrays:1"),
    killed("file.before_rename@*/checkpoints/*.npz:1"),
    killed("checkpoint.before_facts:1"),
    killed("file.before_rename@*/checkpoints/*.json:1"),
    killed("checkpoint.before_cleanup:1"),
    crashed,
    held_by_another_process,
    with_a_damaged_checkpoint,
    killed("file.before_rename@*/weights.npz:1"),
    killed("fold.before_predictions:1"),
    killed("file.before_rename@*/oof.npz:1"),
    killed("result.before_manifest:1"),
    killed("file.before_rename@*/fold0/manifest.json:1"),
    killed("result.after_manifest:1"),
)


@pytest.mark.soak
def test_a_fold_model_survives_every_fault_and_ends_with_the_same_weights(finished, untrained) -> None:
    for step in STEPS:
        step(untrained)
    finish(untrained, finished)


@pytest.mark.soak
def test_a_folder_that_is_removed_while_its_model_is_trained_costs_one_more_run(finished, untrained) -> None:
    trace = untrained.folder / "points"
    process = subprocess.Popen(
        untrained.command(*FOLD0), cwd=ROOT, stdout=-1, stderr=-1, text=True,
        env=environment(GOLDFOLD_POINTS=str(trace)),
    )  # fmt: skip
    wait_for(lambda: trace.exists() and "checkpoint.before_cleanup" in trace.read_text(), process)
    shutil.rmtree(untrained.work / "members", ignore_errors=True)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 or (err.startswith("goldfold: ") and "Traceback" not in err), out + err
    finish(untrained, finished)


@pytest.mark.parametrize("place", ["work", "submissions"])
def test_a_file_in_place_of_a_folder_is_reported_before_anything_is_trained(tmp_path: Path, place: str) -> None:
    workspace = new_workspace(tmp_path)
    (tmp_path / place).write_text("not a folder")
    started = time.monotonic()
    assert f"{tmp_path / place} is not a folder" in workspace.refused("train")
    assert time.monotonic() - started < 60 and (tmp_path / place).read_text() == "not a folder"


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
