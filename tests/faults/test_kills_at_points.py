"""A process that is killed at any fault point loses nothing that was complete; the next one finishes."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from builders import ROOT
from injection import KILLED, run_code

from competition.submission import ledger
from competition.training.checkpoint import Checkpoints

SAVE = """
import sys
from pathlib import Path
import numpy as np
from competition.training.checkpoint import Checkpoints
for step in (10, 20, 30):
    Checkpoints(Path(sys.argv[1]), "x").save(step, {"a": np.full(9, step)}, {"total": step})
"""


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
    assert run_code(SAVE, tmp_path, faults=fault).code == (KILLED if fault.endswith("kill") else 1)
    checkpoint = Checkpoints(tmp_path, "x").latest()
    assert checkpoint is not None and checkpoint.step == checkpoint.facts["total"] == step
    np.testing.assert_array_equal(checkpoint.arrays["a"], np.full(9, step))


APPEND = """
import sys
from pathlib import Path
from competition.submission.ledger import Entry, append_entry_once
entry = Entry("d" * 64, "d.csv", "small", ("a",), (1.0,), ("identity",), "p", "", "accuracy", 0.5, 0.25, 0.125, 9, 4, "", sys.argv[2])
append_entry_once(Path(sys.argv[1]), entry)
"""


@pytest.mark.parametrize(("fault", "lines"), [("ledger.before_line:1:kill", 0), ("ledger.after_line:1:kill", 1)])
def test_the_ledger_gets_each_line_once(tmp_path: Path, fault: str, lines: int) -> None:
    path = tmp_path / "ledger.jsonl"
    assert run_code(APPEND, path, "2026-01-01", faults=fault).code == KILLED
    assert len(ledger.read(path).entries) == lines
    for _ in range(2):
        assert run_code(APPEND, path, "2026-01-02").code == 0
    assert len(ledger.read(path).entries) == 1 and ledger.read(path).unreadable == 0


UNPACK = """
import sys
from pathlib import Path
from competition.kaggle.archive import UnpackRules, extract
extract(Path(sys.argv[1]), Path(sys.argv[2]), UnpackRules(200))
"""


def test_an_archive_is_unpacked_completely_or_not_at_all(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for n in range(9):
            zipped.writestr(f"images/{n}.jpg", bytes([n]) * 999)
    arguments = (tmp_path / "a.zip", tmp_path / "raw")
    assert run_code(UNPACK, *arguments, faults="unpack.before_rename:1:kill").code == KILLED
    assert not (tmp_path / "raw").exists()
    assert run_code(UNPACK, *arguments).code == 0
    assert sorted(path.name for path in (tmp_path / "raw" / "images").iterdir()) == [f"{n}.jpg" for n in range(9)]
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "raw"}


SEARCH = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from studies import open_journal, open_study, searched, settings
from competition.tuning.choice import origin_of
own = {"zoom": 5.0, "weight_decay": 0.1}  # outside the search space
trials, tried = searched(Path(sys.argv[1]), 6, own_values=own)
every = open_study(open_journal(Path(sys.argv[1])), settings(6)).get_trials()
killed = [(str(origin_of(trial)), trial.params) for trial in every if trial.state.name == "FAIL"]
print(json.dumps([{str(origin_of(trial)): trial.params for trial in trials}, killed, tried]))
"""


def test_a_trial_killed_before_its_score_is_stored_is_run_again_with_its_values(tmp_path: Path) -> None:
    journal, studies = tmp_path / "study.log", ROOT / "tests" / "tuning"
    for fault in ("tune.before_score:1:kill", "tune.before_trial:2:kill", "tune.before_score:2:kill"):
        assert run_code(SEARCH, journal, studies, faults=fault).code == KILLED
    finished, killed, later = json.loads(run_code(SEARCH, journal, studies).out)
    assert sorted(finished) == [str(number) for number in range(6)] and 0 < len(later) < 6  # none lost, none repeated
    assert len(killed) == 3 and all(finished[origin] == values for origin, values in killed if values)
    assert finished["0"]["zoom"] == 5.0 and any(origin == "0" for origin, _ in killed)
