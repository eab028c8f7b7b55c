"""A fold model in training through stops, kills, a full disk, damage and a second process ends with the same weights.

Files that change between two stages are noticed: a byte of a raw image, the classes, the folds, a prediction.
"""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders import ROOT
from injection import ARM, KILLED, environment, run_stage
from preloaded import run_preloaded
from stages import FEWER_DIGITS, MAIN_JOB, StageResult, Workspace, new_workspace

from competition.files.manifest import sha256

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
        ("train.after_steps:1:crash", -signal.SIGSEGV, "in show_events"),
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
    process = subprocess.Popen(untrained.command(*FOLD0), cwd=ROOT, stdout=-1, stderr=-1, text=True)
    end = time.monotonic() + 200
    while not checkpoints(untrained):
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


@pytest.mark.skipif(not os.geteuid() and not shutil.which("setpriv"), reason="root writes everywhere without setpriv")
def test_a_read_only_folder_is_reported_before_anything_is_trained(tmp_path: Path) -> None:
    workspace = new_workspace(tmp_path)
    (tmp_path / "submissions").mkdir(mode=0o500)
    command = [*WITHOUT_ROOT, *workspace.command("train")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    remedy = "make it writable, or choose another folder (--work, --submissions)"
    assert result.stderr == f"goldfold: {tmp_path}/submissions cannot be written; {remedy}\n" and result.returncode == 1
    assert not (tmp_path / "work").exists()


WAIT = """
import signal, sys, time
from competition.training.fault_tolerance import stop_signals
signal.signal(signal.SIGINT, signal.default_int_handler)
received = []
try:
    with stop_signals(received):
        print("ready", flush=True)
        while not received or sys.argv[1] == "2":
            time.sleep(0.01)
except KeyboardInterrupt:
    print("at once")
print(received)
"""


@pytest.mark.parametrize(
    ("number", "times", "code", "out"),
    [
        (signal.SIGTERM, 1, 0, "[15]\n"),
        (signal.SIGTERM, 2, -signal.SIGTERM, ""),
        (signal.SIGINT, 2, 0, "at once\n[2]\n"),
    ],
)
def test_the_first_signal_asks_training_to_stop_and_the_second_one_stops_at_once(number, times, code, out) -> None:
    command = [sys.executable, "-c", WAIT, str(times)]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment())
    assert process.stdout is not None and process.stdout.readline() == "ready\n" and process.stderr is not None
    process.send_signal(number)
    assert "stopping at the next checkpoint" in process.stderr.readline() + process.stderr.readline()
    if times == 2:
        process.send_signal(number)
    assert (process.communicate(timeout=60)[0], process.returncode) == (out, code)


def test_ctrl_c_outside_of_training_ends_a_verb_with_its_exit_code(tmp_path: Path) -> None:
    handle = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    press = "import pipelines.main_job.train as stage; stage.run = lambda job: os.kill(os.getpid(), signal.SIGINT)"
    result = new_workspace(tmp_path).run("train", code=f"{handle}\n{press}")
    assert (result.code, result.err) == (130, "goldfold: stopped; run the same command again to continue\n")


def train_twice(workspace: Workspace, *options: str) -> tuple[list[str], list[list[str]]]:
    """The outputs of two `make train MEMBER=slim` at once, and the fold models that each trained."""
    options = ("--member", "slim", *options)
    results: list[StageResult] = []
    arguments = workspace.command("train", *options)[3:]
    first = run_preloaded(
        "pipelines", arguments, ROOT, os.environ, meanwhile=lambda _: results.append(workspace.run("train", *options))
    )
    results.append(StageResult(*first))
    assert [result.code for result in results] == [0, 0], results
    outputs = [result.out for result in results]
    return outputs, [re.findall(r"train (\w+ fold \d): \w+ [\d.]+ on its held-out rows", output) for output in outputs]


MODELS = [f"slim fold {fold}" for fold in range(3)]


def test_two_processes_train_each_fold_model_once_with_force_too_and_both_end_with_all(finished, untrained) -> None:
    outputs, trained = train_twice(untrained)
    assert sorted(trained[0] + trained[1]) == MODELS and all(trained), outputs  # each had a share
    assert all("slim: 3 folds, mean held-out score" in output for output in outputs)
    assert any("trains it now, so this process takes the models that are free" in output for output in outputs)
    before = {path: path.stat().st_mtime_ns for path in untrained.work.glob("members/*/*/fold*/manifest.json")}
    outputs, trained = train_twice(untrained, "--force")
    # One that the first process made again before the second began is made again by that, too.
    assert sorted({*trained[0], *trained[1]}) == MODELS and all(trained), outputs
    assert len(trained[0] + trained[1]) < 2 * len(MODELS)
    assert all(path.stat().st_mtime_ns > written for path, written in before.items()) and len(before) == len(MODELS)
    assert untrained.weights() == {path: digest for path, digest in finished.weights().items() if "slim" in path}
    assert not list(untrained.work.glob("members/*/*/again")) and not list(untrained.work.rglob("*.holder.lock"))


@pytest.fixture(scope="module")
def changing(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A copy of the finished workspace. Every test puts back what it changes."""
    return finished.copy_to(tmp_path_factory.mktemp("changing") / "workspace")


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def test_a_raw_file_with_one_flipped_byte_is_not_indexed(changing: Workspace) -> None:
    file = max((changing.work / "raw").rglob("*.tfrec"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    with changed(file, bytes(data)):
        error = changing.refused("prepare", "--force")
    assert "1 of" in error and file.name in error and "`make download` fetches them again" in error
    assert "prepare: current" in changing.do("prepare")  # what was made before is kept


def test_other_classes_or_folds_after_training_are_other_data(changing: Workspace) -> None:
    described, index = (changing.work / "data" / name for name in ("competition.json", "index.csv"))
    content = json.loads(described.read_text())
    content["classes"] = content["classes"][::-1]
    with changed(described, json.dumps(content).encode()):
        error = changing.refused("predict")
        assert "lacks fold 0 (not trained)" in error and "differs: data: " in error
    header, first, *rows = index.read_text().splitlines(keepends=True)
    cells = first.rstrip("\n").split(",")
    cells[-1] = str((int(cells[-1]) + 1) % 3)
    with changed(index, "".join([header, ",".join(cells) + "\n", *rows]).encode()):
        assert "differs: data: " in changing.refused("predict")
    assert "current" in changing.do("predict")


@pytest.mark.soak
def test_a_stage_that_is_killed_before_a_rename_is_made_again(changing: Workspace) -> None:
    before = changing.submission()
    for stage, fault in (
        ("download", "download.before_rename:1:kill"),
        ("prepare", "records.before_rename:2:kill"),
        ("blend", "file.before_rename@*/submission.csv:1:kill"),
    ):
        killed = changing.run(stage, "--force", code=f"{ARM}\n{FEWER_DIGITS}", **environment(fault))
        assert killed.code == KILLED, killed
        again = changing.do_in_one_process(stage, code=FEWER_DIGITS)
        assert f"{stage}: current" not in again and "was killed or crashed" in again
    assert "train slim: folds 0, 1, 2 current" in changing.do("train")  # the same data as before
    assert "current" in changing.do("predict") and "blend: current" in changing.do("blend")
    assert changing.submission() == before and len(changing.ledger()) == 1
    assert not [path for path in changing.folder.rglob(".*") if path.is_file() and path.suffix != ".lock"]


# Variables of `make soak`.
KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("SEED", "1"))
PARAMS = f"""
extends: {ROOT}/tests/small.yaml
prepare: {{folds: 3}}
tune: {{trials: 2, members: [slim], folds: [0, 1], heartbeat: 1.0}}
train: {{epochs: 2, batch: 100, steps_per_call: 2}}
predict: {{batch: 100, views: [identity, shift_up]}}
blend: {{rounds: 3, bags: 2}}
"""
CHANGES = ("made", "git_commit")  # of a line of the ledger: the time, and the state of the repository at that time
# Of the stages that are killed, below work/<competition>.
RESULTS = {
    "download": ("raw", "raw.json"),
    "prepare": ("data",),
    "tune": ("tune",),
    "train": ("members",),
    "predict": ("members/*/*/fold*/views",),
    "blend": ("blend", "blends"),
}


def results(workspace: Workspace) -> dict[str, str]:
    """Digests of all predictions, of the submission and of the ledger without times and commits."""
    patterns = ("members/*/*/fold*/*.npz", "members/*/*/fold*/views/*/*.npz", "blend/*/*.npz")
    files = [*(path for one in patterns for path in workspace.work.glob(one)), *workspace.submissions.glob("*.csv")]
    kept = [{key: line[key] for key in sorted(line) if key not in CHANGES} for line in workspace.ledger()]
    digests = {path.relative_to(workspace.folder).as_posix(): sha256(path) for path in files}
    return digests | {"ledger": json.dumps(kept)}


def is_killed(workspace: Workspace, stage: str, seconds: float, number: int) -> bool:
    """Start a stage and send it a signal after some seconds; return False if it ended before."""
    process = subprocess.Popen(
        workspace.command(stage), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=-1, text=True, env=environment()
    )
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        _, err = process.communicate(timeout=300)
    ended_by_it = process.returncode in (-number, 128 + number)
    assert process.returncode == 0 or ended_by_it, f"{stage} ended with {process.returncode}: {err}"
    return ended_by_it


def remove_results(workspace: Workspace, stage: str) -> None:
    paths = [path for pattern in RESULTS[stage] for path in workspace.work.glob(pattern)]
    for path in [*paths, *([workspace.submissions] if stage == "blend" else [])]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.soak
def test_after_random_kills_all_results_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    undisturbed, disturbed = (new_workspace(tmp_path / name, PARAMS) for name in ("undisturbed", "disturbed"))
    duration: dict[str, float] = {}
    for stage in MAIN_JOB:
        started = time.monotonic()
        undisturbed.do(stage)
        duration[stage] = time.monotonic() - started
    expected = results(undisturbed)
    # Weights, oof and two files of views of each fold; test and honest_oof of the blend; csv; ledger.
    assert len(expected) == 3 * 4 + 2 + 2
    total = sum(duration[stage] for stage in RESULTS)
    killed: list[str] = []
    for stage in MAIN_JOB:
        # Its share of the kills by the time that it takes, at least one.
        kills = max(1, math.ceil(KILLS * duration[stage] / total)) if stage in RESULTS else 0
        while killed.count(stage) < kills:
            number = rng.choice([signal.SIGKILL, signal.SIGTERM])
            if is_killed(disturbed, stage, rng.uniform(0.1, 1.0) * duration[stage], number):
                killed.append(stage)
            else:  # it was complete before the signal
                remove_results(disturbed, stage)
        disturbed.do(stage)
    assert len(killed) >= KILLS, killed
    print(f"{len(killed)} kills: " + ", ".join(f"{stage} {killed.count(stage)}" for stage in RESULTS))
    assert results(disturbed) == expected
    assert not [path for path in disturbed.folder.rglob(".*") if path.is_file() and path.suffix != ".lock"]
