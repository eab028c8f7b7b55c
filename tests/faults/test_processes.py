"""Processes that are killed, meet a full disk or work at once lose nothing that was complete: without TensorFlow."""

import os
import sys
import time
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from builders import ROOT, largest_file, ledger_entry
from injection import KILLED, exit_code_with
from make_calls import calls_of_make
from preloaded import start_process

sys.path.insert(0, str(ROOT / "tests" / "tuning"))

from studies import searched, settings

from competition.ensemble.stored_predictions import ViewPredictions, save_scores
from competition.files.locks import InUse, exclusive, last_holder
from competition.files.manifest import atomic_write, write_json, write_manifest
from competition.kaggle.archive import extract
from competition.kaggle.errors import KaggleError
from competition.submission import ledger
from competition.training.checkpoint import Checkpoints, save_arrays
from competition.tuning.choice import origin_of
from competition.tuning.storage import open_storage
from competition.tuning.study import open_study
from competition.workspace.current_blend import set_newest_blend, stored_blends
from competition.workspace.dependencies import FoldModel, fold_manifest_path
from pipelines.execution import training
from pipelines.terminal.failures import describe, exit_code
from pipelines.terminal.hosts import Hosts


def save_three(folder: Path) -> None:
    for step in (10, 20, 30):
        Checkpoints(folder, "x").save(step, {"a": np.full(9, step)}, {"total": step})


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("checkpoint.before_arrays:3:kill", 20),
        ("file.before_sync@*00000030.npz:1:kill", 20),
        ("file.before_rename@*00000030.npz:1:kill", 20),
        ("checkpoint.before_facts:3:kill", 20),
        ("file.before_rename@*00000030.json:1:kill", 20),
        ("file.after_rename@*00000030.json:1:kill", 30),
        ("checkpoint.before_cleanup:3:kill", 30),
        ("file.before_sync@*00000030.npz:1:full", 20),
        ("file.before_sync@*00000030.json:1:readonly", 20),
    ],
)
def test_the_newest_complete_checkpoint_is_used(tmp_path: Path, fault: str, step: int) -> None:
    assert exit_code_with(fault, save_three, tmp_path) == (KILLED if fault.endswith("kill") else 1)
    checkpoint = Checkpoints(tmp_path, "x").latest()
    assert checkpoint is not None and checkpoint.step == checkpoint.facts["total"] == step
    np.testing.assert_array_equal(checkpoint.arrays["a"], np.full(9, step))


@pytest.mark.parametrize(("fault", "lines"), [("ledger.before_line:1:kill", 0), ("ledger.after_line:1:kill", 1)])
def test_the_ledger_gets_each_line_once(tmp_path: Path, fault: str, lines: int) -> None:
    path = tmp_path / "ledger.jsonl"
    assert exit_code_with(fault, ledger.append_entry_once, path, ledger_entry(made="2026-01-01")) == KILLED
    assert len(ledger.read(path).entries) == lines
    for _ in range(2):
        ledger.append_entry_once(path, ledger_entry(made="2026-01-02"))
    assert len(ledger.read(path).entries) == 1 and ledger.read(path).unreadable == 0


def test_an_archive_is_unpacked_completely_or_not_at_all(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for n in range(9):
            zipped.writestr(f"images/{n}.jpg", bytes([n]) * 999)
    arguments = (tmp_path / "a.zip", tmp_path / "raw")
    assert exit_code_with("unpack.before_rename:1:kill", extract, *arguments) == KILLED
    assert not (tmp_path / "raw").exists()
    extract(*arguments)
    assert sorted(path.name for path in (tmp_path / "raw" / "images").iterdir()) == [f"{n}.jpg" for n in range(9)]
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "raw"}


def test_a_trial_killed_before_its_score_is_stored_is_run_again_with_its_values(tmp_path: Path) -> None:
    journal, outside = tmp_path / "study.log", {"zoom": 5.0, "weight_decay": 0.1}  # of the search space
    search = partial(searched, journal, 6, own_values=outside)
    for fault in ("tune.before_score:1:kill", "tune.before_trial:2:kill", "tune.before_score:2:kill"):
        assert exit_code_with(fault, search) == KILLED
    trials, later = search()
    finished = {origin_of(trial): trial.params for trial in trials}
    every = open_study(open_storage("", journal), settings(6)).get_trials()
    killed = [(origin_of(trial), trial.params) for trial in every if trial.state.name == "FAIL"]
    assert sorted(finished) == list(range(6)) and 0 < len(later) < 6  # none lost, none repeated
    assert len(killed) == 3 and all(finished[origin] == values for origin, values in killed if values)
    assert finished[0]["zoom"] == 5.0 and any(origin == 0 for origin, _ in killed)


def write_csv(path: Path, ids: np.ndarray, probs: np.ndarray) -> None:
    with atomic_write(path) as temporary:
        pd.DataFrame(probs[:, 0], ids).to_csv(temporary)


WRITERS: dict[str, Callable[[Path, np.ndarray, np.ndarray], object]] = {
    "json": lambda path, ids, probs: write_json(path, ids.tolist()),
    "weights": lambda path, ids, probs: save_arrays(path, {"a": probs}),
    "predictions": lambda path, ids, probs: ViewPredictions(ids, ("identity",), probs).save(path),
    "scores": lambda path, ids, probs: save_scores(path, ids, probs[:, 0]),
    "csv": write_csv,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_every_earlier_file_and_no_temporary_one(tmp_path: Path, name: str) -> None:
    few, many = ((np.arange(n).astype(str), np.full((n, 1, 4), 0.25, np.float32)) for n in (9, 50_000))
    WRITERS[name](tmp_path / name, *few)
    before = (tmp_path / name).read_bytes()
    with largest_file(100_000), pytest.raises(OSError, match="too large"):  # which stands for a full disk
        WRITERS[name](tmp_path / name, *many)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, before)]


OfTensorFlow = type("ResourceExhaustedError", (Exception,), {})


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "as the system words it", "/x/weights.npz"), 4, "the disk is full at /x/weights.npz"),
        (PermissionError(13, "Permission denied", "/x"), 1, "no permission to write at /x"),
        (NotADirectoryError(20, "Not a directory", "/x"), 1, "a file and a folder are confused at /x"),
        (MemoryError(), 1, "lower train.batch"),
        (OfTensorFlow("OOM when allocating tensor with shape[512]"), 1, "lower train.batch or the member's"),
        (KaggleError("disk", "the download could not be written"), 4, "the download could not be written"),
        (KaggleError("rules", "accept them"), 1, "accept them"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero\nUnexpected error; DEBUG=1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_the_machine_is_one_sentence_with_its_remedy(error: Exception, code: int, words: str) -> None:
    assert words in describe(error) and exit_code(error) == code


def hold(path: Path) -> None:
    with exclusive(path, "train cnn fold 2"):
        time.sleep(60)


def test_a_lock_names_its_holder_and_that_of_a_dead_one_is_free_and_its_fold_trained_last(tmp_path, monkeypatch):
    run = SimpleNamespace(folder=tmp_path)
    models = [FoldModel(fold_manifest_path(run, fold), {}, fold, "") for fold in (1, 0, 2)]
    path = models[0].manifest.with_suffix(".lock")
    path.parent.mkdir(parents=True)
    holder = start_process(hold, path)
    while not last_holder(path):
        time.sleep(0.01)
    with pytest.raises(InUse, match=rf"process {holder.pid} on \S+ \(train cnn fold 2\)"), exclusive(path, "other"):
        pass
    holder.kill()
    holder.join()
    monkeypatch.setattr(training, "selected_folds", lambda _: [0, 1, 2])
    monkeypatch.setattr(training, "fold_model", lambda _, fold: models[(1, 0, 2)[fold]])
    monkeypatch.setattr(training, "train_models", lambda job, _, stale: job.trained.extend(one.fold for one in stale))
    job = SimpleNamespace(options=SimpleNamespace(fold="", force=True), trained=[], hosts=Hosts())
    training.train_run(job, run)
    assert job.trained == [0, 2, 1]
    with exclusive(path, "next") as dead:
        assert dead.startswith(f"process {holder.pid} on ") and last_holder(path).startswith(f"process {os.getpid()} ")
    with exclusive(path, "next") as dead:
        assert not dead  # the last one released it


def test_the_newest_submission_and_blend_are_those_made_last_whatever_the_clock_says(tmp_path: Path) -> None:
    for n, jump in enumerate((0, -48, -48, 10_000, 1)):
        made = datetime(2026, 1, 1) + timedelta(hours=jump)
        entry = ledger_entry(digest=f"{n:064}", file=f"{n}.csv", made=made.isoformat())
        ledger.append(tmp_path / "ledger.jsonl", entry)
        manifest = tmp_path / "blend" / str(n) / "manifest.json"
        write_manifest(manifest, {}, [], {}, {})
        os.utime(manifest, (made.timestamp(),) * 2)
        set_newest_blend(manifest.parent)
    rows = ledger.submission_states(ledger.read(tmp_path / "ledger.jsonl"))
    assert [row.entry.file for row in rows] == ["0.csv", "1.csv", "2.csv", "3.csv", "4.csv"]
    assert stored_blends(tmp_path)[0][0] == tmp_path / "blend" / "4"


@pytest.mark.parametrize(
    ("number", "words"),
    [(9, "was killed, probably because memory ran out: lower train.batch"), (11, "crashed in compiled code"), (0, "")],
)
def test_make_explains_a_stage_that_the_system_ended(tmp_path: Path, number: int, words: str) -> None:
    process, _ = calls_of_make(tmp_path, "train", fails="train" if number else "", code=-number)
    assert (process.returncode == 0) == (number == 0)
    assert "trap" not in process.stderr and "-m pipelines" not in process.stderr  # what the shell says of its command
    assert words in process.stderr and ("the same command continues" in process.stderr) == (number > 0)
