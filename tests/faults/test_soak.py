"""Stages killed at random moments lose nothing, double nothing, and end with the bytes of an undisturbed run.

KILLS=50 and SEED=1 are variables of `make soak`.
"""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from builders import ROOT
from injection import environment
from stages import MAIN_JOB, Workspace

from competition.files.manifest import sha256

KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("SEED", "1"))
PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: digits}}
prepare: {{folds: 3}}
tune: {{trials: 2, members: [slim], folds: [0, 1], trained_on: tune_folds, heartbeat: 1.0}}
train: {{epochs: 2, batch: 100, steps_per_call: 2}}
members:
  slim: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
predict: {{batch: 100, views: [identity, shift_up]}}
policy: {{rounds: 2}}
blend: {{rounds: 3, bags: 2}}
honest: {{resamples: 50}}
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


def workspace_in(folder: Path) -> Workspace:
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text(PARAMS)
    return Workspace(folder)


def results(workspace: Workspace) -> dict[str, str]:
    """Digests of all predictions, of the submission and of the ledger without times and commits."""
    patterns = ("members/*/*/fold*/*.npz", "members/*/*/fold*/views/*/*.npz", "blend/*/*.npz")
    files = [*(path for one in patterns for path in workspace.work.glob(one)), *workspace.submissions.glob("*.csv")]
    lines = [json.loads(line) for line in (workspace.submissions / "ledger.jsonl").read_text().splitlines()]
    kept = [{key: line[key] for key in sorted(line) if key not in CHANGES} for line in lines]
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
    undisturbed, disturbed = workspace_in(tmp_path / "undisturbed"), workspace_in(tmp_path / "disturbed")
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
