"""A study in a database that several workers share: SQLite with one worker, and a real PostgreSQL with four."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from studies import distance, settings
from test_study import PATHS, wait_for_start

from competition.config.errors import UserError
from competition.tuning.storage import open_storage, without_password
from competition.tuning.study import finished_trials, open_study, run_worker

WORKER = """
import sys
from pathlib import Path
url, folder, trials, paths = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
sys.path[:0] = paths
from studies import work
from competition.tuning.storage import open_storage
work(open_storage(url, folder / "unused"), trials, 0.3, folder / f"started{__import__('os').getpid()}", heartbeat=1.0)
"""


def test_a_study_in_a_database_goes_on_where_it_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    for trials, expected in ((2, 2), (4, 4)):
        study = open_study(open_storage(url, tmp_path / "unused.log"), settings(trials))
        run_worker(study, settings(trials), distance)
        assert len(finished_trials(study, settings(trials))) == expected
    assert not (tmp_path / "unused.log").exists()


def test_a_database_that_cannot_be_reached_is_one_sentence_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    url = "postgresql+psycopg://me:very-secret@127.0.0.1:1/none"
    with pytest.raises(UserError, match="cannot be opened") as error:
        open_storage(url, tmp_path / "unused.log")
    assert "very-secret" not in str(error.value) and "me:***@127.0.0.1:1" in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("mysql://me:p@ss@host/db", "mysql://me:***@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_four_workers_on_an_empty_postgresql_one_killed_finish_every_trial_once(tmp_path: Path, postgres: str) -> None:
    trials = 12
    arguments = [postgres, str(tmp_path), str(trials), *PATHS]
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, *arguments], stderr=-1) for _ in range(4)]
    wait_for_start(tmp_path)
    time.sleep(0.1)
    (victim_file, *_) = tmp_path.glob("started*")
    (victim,) = [w for w in workers if str(w.pid) == victim_file.name.removeprefix("started")]
    victim.send_signal(signal.SIGKILL)
    for worker in workers:
        code = worker.wait(120)
        assert code == (-signal.SIGKILL if worker is victim else 0), worker.stderr.read().decode()
    leader = open_study(open_storage(postgres, tmp_path / "unused"), settings(trials))
    finished, every = finished_trials(leader, settings(trials)), leader.get_trials()
    assert sorted(trial.user_attrs["ticket"] for trial in finished) == list(range(trials))
    assert sorted(trial.number for trial in every) == list(range(len(every)))
    assert {trial.state.name for trial in every} <= {"COMPLETE", "FAIL"}
    retried = [trial for trial in every if "retry_of" in trial.user_attrs]
    assert len(retried) == 1 and len({str(sorted(trial.params.items())) for trial in finished}) == trials
