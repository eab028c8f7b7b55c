"""Full disks, limits of memory, clocks that jump, and several processes at once: real processes without TensorFlow."""

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import ledger_entry
from injection import environment, run_code
from make_calls import calls_of_make

from competition.files.locks import InUse, exclusive, last_holder
from competition.files.manifest import write_manifest
from competition.kaggle.errors import KaggleError
from competition.submission import ledger
from competition.workspace.dependencies import FoldModel, fold_manifest_path, newest_blend, set_newest_blend
from pipelines.execution.training import interrupted_last
from pipelines.terminal.failures import describe, exit_code

WRITERS = """
import resource, sys
from pathlib import Path
import numpy as np
import pandas as pd
from competition.files.manifest import atomic_write, write_json
from competition.ensemble.predictions import ViewPredictions, save_scores
from competition.submission import format
from competition.training.checkpoint import save_arrays

folder, count = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
ids, probs = np.array([f"i{n}" for n in range(count)]), np.full((count, 1, 4), 0.25, np.float32)

def csv(path):
    with atomic_write(path) as temporary:
        pd.DataFrame({"id": ids}).to_csv(temporary)

writers = {
    "json": lambda path: write_json(path, ids.tolist()),
    "weights": lambda path: save_arrays(path, {"a": probs}),
    "predictions": lambda path: ViewPredictions(ids, ("identity",), probs).save(path),
    "scores": lambda path: save_scores(path, ids, probs[:, 0]),
    "csv": csv,
}
for name, write in writers.items():
    try:
        write(folder / name)
        print(name, "written")
    except OSError as error:
        print(name, error.strerror)
"""


def test_a_full_disk_leaves_every_earlier_file_and_no_temporary_one(tmp_path: Path) -> None:
    assert run_code(WRITERS, tmp_path, 9).out.count("written") == 5
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before) == 5
    result = run_code(WRITERS, tmp_path, 50_000)  # the limit of the size of a file stands for a full disk
    assert result.out.count("too large") == 5
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


class ResourceExhaustedError(Exception):
    """Named like TensorFlow's."""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "as the system words it", "/x/weights.npz"), 4, "the disk is full at /x/weights.npz"),
        (PermissionError(13, "Permission denied", "/x"), 1, "no permission to write at /x"),
        (NotADirectoryError(20, "Not a directory", "/x"), 1, "a file and a folder are confused at /x"),
        (MemoryError(), 1, "lower train.batch"),
        (ResourceExhaustedError("OOM when allocating tensor with shape[512]"), 1, "lower train.batch or the member's"),
        (KaggleError("disk", "the download could not be written"), 4, "the download could not be written"),
        (KaggleError("rules", "accept them"), 1, "accept them"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero\nUnexpected error; DEBUG=1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_the_machine_is_one_sentence_with_its_remedy(error: Exception, code: int, words: str) -> None:
    assert words in describe(error) and exit_code(error) == code


HOLD = """
import sys, time
from pathlib import Path
from competition.files.locks import exclusive
with exclusive(Path(sys.argv[1]), "train cnn fold 2"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_names_its_holder_and_that_of_a_dead_one_is_free_at_once_and_its_fold_trained_last(
    tmp_path: Path,
) -> None:
    run = SimpleNamespace(folder=tmp_path)
    models = [FoldModel(fold_manifest_path(run, fold), {}, fold, "") for fold in (1, 0, (0, 1))]
    path = models[0].manifest.with_suffix(".lock")
    path.parent.mkdir(parents=True)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=-1, text=True, env=environment())
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(InUse, match=rf"process {holder.pid} on \S+ \(train cnn fold 2\)"), exclusive(path, "other"):
        pass
    holder.kill()
    holder.communicate()
    assert [model.fold for model in interrupted_last(run, models)] == [0, (0, 1), 1]
    with exclusive(path, "next") as dead:
        assert dead is not None and dead.pid == holder.pid
        current = last_holder(path)
        assert current is not None and current.pid == os.getpid()
    with exclusive(path, "next") as dead:
        assert dead is None  # the last one released it


def test_the_newest_submission_and_blend_are_those_made_last_whatever_the_clock_says(tmp_path: Path) -> None:
    for n, jump in enumerate((0, -48, -48, 10_000, 1)):
        made = datetime(2026, 1, 1) + timedelta(hours=jump)
        entry = ledger_entry(digest=f"{n:064}", file=f"{n}.csv", made=made.isoformat())
        ledger.append(tmp_path / "ledger.jsonl", entry)
        manifest = tmp_path / "blend" / str(n) / "manifest.json"
        write_manifest(manifest, {}, [], {}, {})
        os.utime(manifest, (made.timestamp(),) * 2)
        set_newest_blend(manifest.parent)
    rows = ledger.rows(ledger.read(tmp_path / "ledger.jsonl"))
    assert [row.entry.file for row in rows] == ["0.csv", "1.csv", "2.csv", "3.csv", "4.csv"]
    assert newest_blend(tmp_path) == tmp_path / "blend" / "4"


@pytest.mark.parametrize(
    ("number", "words"),
    [(9, "was killed, probably because memory ran out: lower train.batch"), (11, "crashed in compiled code"), (0, "")],
)
def test_make_explains_a_stage_that_the_system_ended(tmp_path: Path, number: int, words: str) -> None:
    process, _ = calls_of_make(tmp_path, "train", fails="train" if number else "", code=-number)
    assert (process.returncode == 0) == (number == 0)
    assert (
        "trap" not in process.stderr and "-m pipelines" not in process.stderr
    )  # what the shell says of its command line
    assert words in process.stderr and ("the same command continues" in process.stderr) == (number > 0)
