"""A study survives its processes: finished trials count once, unfinished ones are repeated, the total is exact."""

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from studies import OWN, distance, searched, settings

from competition.config.errors import UserError
from competition.config.params import Dimension
from competition.tuning.samplers import make_sampler
from competition.tuning.storage import open_journal, repair_journal
from competition.tuning.study import (
    Evaluation,
    Pruned,
    _Watch,
    best_trial,
    finished_trials,
    limit_reached,
    open_study,
    retry_dead_trials,
    run_worker,
    trials_without_improvement,
)

PATHS = [str(path) for path in (ROOT, ROOT / "tests", Path(__file__).parent)]
DEAD = f"{socket.gethostname()}/999999999.1"  # a worker of this machine whose process has ended
WORKER = """
import sys
from pathlib import Path
folder, trials, seconds, paths = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
sys.path[:0] = paths
from studies import work
from competition.tuning.storage import open_journal
work(open_journal(folder / "study.log"), trials, seconds, folder / f"started{__import__('os').getpid()}")
"""


def start_worker(folder: Path, trials: int, seconds: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), str(trials), str(seconds), *PATHS], stderr=-1)


def trials_of(folder: Path, trials: int) -> tuple[list[Any], list[Any]]:
    """(finished trials, all trials) of the study in a folder."""
    study = open_study(open_journal(folder / "study.log"), settings(trials))
    return finished_trials(study, settings(trials)), study.get_trials()


def test_the_first_trial_has_the_members_own_values_and_the_best_one_wins(tmp_path: Path) -> None:
    trials, tried = searched(tmp_path / "study.log", 6)
    best = best_trial(trials)
    assert tried[0] == OWN and len(trials) == len(tried) == 6
    assert best is not None and dict(best.params) == min(tried, key=lambda point: abs(point["zoom"] - 0.3))
    assert all(-1 <= point["zoom"] <= 1 and 1e-3 <= point["weight_decay"] <= 1 for point in tried)


def test_trials_of_an_earlier_process_count(tmp_path: Path) -> None:
    _, before = searched(tmp_path / "study.log", 3)
    _, after = searched(tmp_path / "study.log", 5)
    assert (len(before), len(after)) == (3, 2)
    assert not [point for point in after if point in before]
    trials, again = searched(tmp_path / "study.log", 5)
    assert again == [] and len(trials) == 5
    assert len(searched(tmp_path / "study.log", 2)[0]) == 2  # a smaller total takes its first trials


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_the_same_trials_are_drawn_whether_or_not_the_search_was_interrupted(tmp_path: Path, sampler: str) -> None:
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    _, uninterrupted = searched(tmp_path / "one.log", 9, sampler=sampler)
    interrupted = [point for n in (2, 3, 9) for point in searched(tmp_path / "two.log", n, sampler=sampler)[1]]
    assert interrupted == uninterrupted and len(set(map(str, interrupted))) == 9


def test_another_name_is_another_study(tmp_path: Path) -> None:
    searched(tmp_path / "study.log", 3)
    assert len(searched(tmp_path / "study.log", 3, name="other data")[1]) == 3


@pytest.mark.parametrize("partial_line", [b'{"op_code": 4, "wor', b"\xff\xfe", b"{"])
def test_a_partial_last_line_is_moved_to_another_file(tmp_path: Path, partial_line: bytes) -> None:
    journal = tmp_path / "study.log"
    searched(journal, 3)
    complete_lines = journal.read_bytes()
    journal.write_bytes(complete_lines + partial_line)
    trials, tried = searched(journal, 4)
    assert (len(trials), len(tried)) == (4, 1)
    assert journal.read_bytes().startswith(complete_lines) and journal.with_suffix(".torn").read_bytes() == partial_line
    assert searched(journal, 4)[1] == []


def test_a_complete_journal_is_not_changed(tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    repair_journal(journal)
    assert not journal.exists()
    searched(journal, 1)
    before = journal.read_bytes()
    repair_journal(journal)
    assert journal.read_bytes() == before and not journal.with_suffix(".torn").exists()


def test_eight_workers_on_a_fresh_journal_run_every_trial_once(tmp_path: Path) -> None:
    workers = [start_worker(tmp_path, 24, 0.05) for _ in range(8)]
    for worker in workers:
        assert worker.wait(120) == 0, worker.stderr.read().decode()
    finished, every = trials_of(tmp_path, 24)
    assert len(finished) == 24 and [trial.number for trial in every] == list(range(len(every)))
    assert sorted(trial.user_attrs["ticket"] for trial in finished) == list(range(24))
    started = [line for file in tmp_path.glob("started*") for line in file.read_text().splitlines()]
    assert len(started) == len(set(started)) == 24
    assert {trial.state.name for trial in every if trial not in finished} <= {"FAIL"}


def test_the_trial_of_a_killed_worker_is_run_again_with_the_same_values(tmp_path: Path) -> None:
    worker = start_worker(tmp_path, 4, 60)
    started = wait_for_start(tmp_path)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    trials, tried = searched(tmp_path / "study.log", 4)
    assert len(trials) == 4 and started in [str(sorted(point.items())) for point in tried]
    states = [trial.state.name for trial in trials_of(tmp_path, 4)[1]]
    assert (states.count("COMPLETE"), states.count("FAIL")) == (4, 1)


def wait_for_start(folder: Path) -> str:
    """The first line that a worker writes when it starts a trial."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if lines := [line for file in folder.glob("started*") for line in file.read_text().splitlines()]:
            return lines[0]
        time.sleep(0.05)
    raise AssertionError("no worker has started a trial")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_twenty_kills_lose_no_finished_trial_and_the_study_reaches_its_total(tmp_path: Path) -> None:
    """Trials of 50 ms in two workers; one is killed at a random moment, twenty times."""
    kills, rng, before = 0, random.Random(7), 0
    workers = [start_worker(tmp_path, 150, 0.05) for _ in range(2)]
    while kills < 20:
        time.sleep(rng.uniform(0.5, 3.0))
        finished = len(trials_of(tmp_path, 150)[0])
        assert finished >= before
        before = finished
        victim = rng.randrange(2)
        if workers[victim].poll() is None:
            workers[victim].send_signal(signal.SIGKILL)
            kills += 1
        workers[victim].wait()
        workers[victim] = start_worker(tmp_path, 150, 0.05)
    assert [worker.wait(300) for worker in workers] == [0, 0]
    finished_trials, every = trials_of(tmp_path, 150)
    assert sorted(trial.user_attrs["ticket"] for trial in finished_trials) == list(range(150))
    assert [trial.number for trial in every] == list(range(len(every)))


def test_values_that_kill_their_worker_again_and_again_are_replaced(tmp_path: Path) -> None:
    study = open_study(open_journal(tmp_path / "study.log"), settings(2))
    own = study.ask()
    study.tell(own, -1.0)
    values = []
    for _ in range(3):  # trial 1 and its two successors are running when their process ends
        trial = study.ask()
        values.append(trial.suggest_float("zoom", -1, 1))
        trial.set_user_attr("worker", DEAD)
        if len(values) < 3:
            retry_dead_trials(study, settings(2), _Watch(1.0))
    assert values[0] == values[1] != values[2]


def test_a_silent_worker_on_another_machine_is_dead_after_three_heartbeats(tmp_path: Path) -> None:
    study = open_study(open_journal(tmp_path / "study.log"), settings(2))
    trial = study.ask()
    trial.set_user_attr("worker", "elsewhere/1.1")
    started = time.monotonic()
    run_worker(study, settings(2, heartbeat=0.3), distance)
    assert time.monotonic() - started > 0.9
    assert [t.state.name for t in study.get_trials()].count("COMPLETE") == 2


def test_a_worker_on_another_machine_whose_heart_beats_is_left_alone(tmp_path: Path) -> None:
    study = open_study(open_journal(tmp_path / "study.log"), settings(1))
    trial = study.ask()
    trial.set_user_attr("worker", "elsewhere/1.1")

    def live() -> None:
        for beat in range(8):
            trial.set_user_attr("beat", beat)
            time.sleep(0.25)
        study.tell(trial, 0.5)

    thread = threading.Thread(target=live)
    thread.start()
    run_worker(study, settings(1, heartbeat=0.3), distance)
    thread.join()
    (only,) = study.get_trials()
    assert only.state.name == "COMPLETE" and only.value == 0.5


def test_a_trial_that_diverges_is_finished_and_never_the_best(tmp_path: Path) -> None:
    def diverges_for_positive(values: dict[str, float], report: Any) -> Evaluation:
        if values["zoom"] > 0:
            raise ArithmeticError("the loss is nan")
        return distance(values, report)

    trials, tried = searched(tmp_path / "study.log", 8, diverges_for_positive)
    assert len(trials) == len(tried) == 8 and any(point["zoom"] > 0 for point in tried)
    best = best_trial(trials)
    assert best is not None and best.params["zoom"] <= 0
    assert all("diverged" in trial.user_attrs for trial in trials if trial.params["zoom"] > 0)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_never_the_best(tmp_path: Path, score: float) -> None:
    scores = iter([-2.0, score, -1.0])
    trials, tried = searched(tmp_path / "study.log", 3, lambda values, report: Evaluation(next(scores), 0.01, 0.0))
    best = best_trial(trials)
    assert len(tried) == 3 and best is not None and best.value == -1.0


def test_a_study_in_which_everything_diverges_ends_without_a_best_trial(tmp_path: Path) -> None:
    def diverges(values: dict[str, float], report: Any) -> Evaluation:
        raise ArithmeticError("the loss is nan")

    trials, tried = searched(tmp_path / "study.log", 3, diverges)
    assert len(tried) == 3 and best_trial(trials) is None


def test_a_mistake_in_the_code_ends_the_worker_and_the_trial_is_run_by_the_next_one(tmp_path: Path) -> None:
    def broken(values: dict[str, float], report: Any) -> Evaluation:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        searched(tmp_path / "study.log", 2, broken)
    assert len(searched(tmp_path / "study.log", 2)[0]) == 2


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median", "percentile"])
def test_bad_trials_are_pruned_and_the_own_values_never(tmp_path: Path, pruner: str) -> None:
    def by_steps(values: dict[str, float], report: Any) -> Evaluation:
        result = distance(values, report)
        for step in (12, 25, 38, 50, 75):
            if report(result.score, step):
                raise Pruned({"share": step / 100, "seconds": 1.0})
        return result

    worst = {"zoom": -1.0, "weight_decay": 1.0}
    first = open_study(open_journal(tmp_path / "study.log"), settings(14, own_values=worst)).ask()
    first.set_user_attr("worker", DEAD)  # so the own values are tried again after all others
    trials, _ = searched(tmp_path / "study.log", 14, by_steps, pruner=pruner, own_values=worst)
    states = {trial.user_attrs["ticket"]: trial.state.name for trial in trials}
    assert states[0] == "COMPLETE" and "PRUNED" in states.values()
    assert max(trials, key=lambda trial: -abs(trial.params["zoom"] - 0.3)).state.name == "COMPLETE"


def test_choices_whole_numbers_and_conditions_are_drawn_as_declared(tmp_path: Path) -> None:
    search = {
        "low_resolution_size": Dimension(low=0.4, high=0.8, step=0.2, when={"low_resolution_epochs": (0.5,)}),
        "low_resolution_epochs": Dimension(choices=(0.0, 0.5)),
        "epochs": Dimension(low=2, high=8, step=3),
        "flip": Dimension(choices=("none", "both")),
    }
    own = {
        "low_resolution_size": 0.5,
        "low_resolution_epochs": 0.25,
        "epochs": 7,
        "flip": "horizontal",
    }  # all outside the space
    trials, tried = searched(tmp_path / "study.log", 16, even, search=search, own_values=own)
    assert tried[0] == {key: value for key, value in own.items() if key != "low_resolution_size"} and len(trials) == 16
    for values in tried[1:]:
        assert ("low_resolution_size" in values) == (values["low_resolution_epochs"] == 0.5)
        assert values["epochs"] in (2, 5, 8, 7) and isinstance(values["epochs"], int)
        assert values.get("low_resolution_size", 0.4) in (0.4, pytest.approx(0.6), pytest.approx(0.8))
    assert {"none", "both"} <= {values["flip"] for values in tried}


def even(values: dict[str, Any], report: Any) -> Evaluation:
    return Evaluation(0.5, 0.01, 0.0)


def test_a_grid_is_searched_completely_and_the_own_values_first(tmp_path: Path) -> None:
    from competition.config.search_space import grid

    search = {"zoom": Dimension(low=-0.5, high=0.5, step=0.5), "weight_decay": Dimension(choices=(0.1, 1.0))}
    trials, tried = searched(
        tmp_path / "study.log",
        99,
        sampler="grid",
        search=search,
        grid=grid(search),
        own_values={"zoom": -0.5, "weight_decay": 0.1},
    )
    assert tried[0] == {"zoom": -0.5, "weight_decay": 0.1} and len(trials) == 6
    assert sorted(map(str, tried)) == sorted(map(str, grid(search)))


def test_warm_starts_are_tried_after_the_own_values(tmp_path: Path) -> None:
    starts = [{"zoom": 0.3, "weight_decay": 0.5}, {"zoom": 0.0}]
    _, tried = searched(tmp_path / "study.log", 4, warm_start=starts)
    assert tried[:2] == [OWN, starts[0]] and tried[2]["zoom"] == 0.0 and 1e-3 <= tried[2]["weight_decay"] <= 1


def test_a_study_ends_when_nothing_improves_beyond_noise(tmp_path: Path) -> None:
    trials, _ = searched(tmp_path / "study.log", 50, even, patience=4)
    assert len(trials) == 5 and trials_without_improvement(trials) == 4
    study = open_study(open_journal(tmp_path / "study.log"), settings(50, patience=4))
    assert "tune.patience" in limit_reached(study, settings(50, patience=4))


def test_a_study_ends_when_its_hours_are_used(tmp_path: Path) -> None:
    def slow(values: dict[str, float], report: Any) -> Evaluation:
        time.sleep(0.1)
        return distance(values, report)

    assert 1 <= len(searched(tmp_path / "study.log", 50, slow, hours=0.25 / 3600)[0]) <= 3


def test_the_second_objective_is_the_time_of_training(tmp_path: Path) -> None:
    from competition.tuning.choice import pareto_front

    def timed(values: dict[str, float], report: Any) -> Evaluation:
        return Evaluation(values["zoom"], 0.01, 2 + values["zoom"] ** 3 + (values["weight_decay"] > 0.1))

    trials, _ = searched(tmp_path / "study.log", 12, timed, two_objectives=True)
    front = pareto_front(trials)
    assert len(trials) == 12 and front[-1].values[0] == max(trial.values[0] for trial in trials)
    assert [t.values[0] for t in front] == sorted(t.values[0] for t in front)
    for point in front:
        assert not any(t.values[0] > point.values[0] and t.values[1] <= point.values[1] for t in trials)


@pytest.mark.parametrize(("sampler", "package"), [("gp", "torch"), ("cmaes", "cmaes")])
def test_a_sampler_whose_package_is_missing_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, sampler: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(UserError, match=f"needs the package {package}, which is not installed"):
        make_sampler(sampler, 1)
