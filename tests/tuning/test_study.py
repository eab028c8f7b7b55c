"""A study survives its processes: finished trials count once, unfinished ones are repeated, the total is exact."""

import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from preloaded import start_process
from studies import OWN, distance, searched, settings, work_in

from competition.config.errors import UserError
from competition.config.params import Dimension
from competition.config.search_space import Values, grid
from competition.ensemble.metrics import METRICS
from competition.tuning import choice
from competition.tuning.choice import best_trial, finished_trials, origin_of
from competition.tuning.journal import Journal, JournalLock, repair_journal
from competition.tuning.samplers import SeededByNumber
from competition.tuning.storage import open_storage
from competition.tuning.study import Evaluation, open_study, run_worker


def exit_codes(workers: list[ForkServerProcess]) -> list[int | None]:
    for worker in workers:
        worker.join(300)
    return [worker.exitcode for worker in workers]


def trials_of(folder: Path, trials: int, url: str = "") -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    """(finished trials, all trials) of the study in a folder or a database."""
    every = open_study(open_storage(url, folder / "study.log"), settings(trials)).get_trials()
    return finished_trials(every, settings(trials)), every


def test_trials_of_an_earlier_process_count(tmp_path: Path) -> None:
    _, before = searched(tmp_path / "study.log", 3)
    _, after = searched(tmp_path / "study.log", 5)
    assert (len(before), len(after)) == (3, 2)
    assert not [point for point in after if point in before]
    assert before[0] == OWN and all(-1 <= p["zoom"] <= 1 and 1e-3 <= p["weight_decay"] <= 1 for p in before + after)
    trials, again = searched(tmp_path / "study.log", 5)
    best = best_trial(trials)
    assert again == [] and len(trials) == 5 and best is not None
    assert dict(best.params) == min(before + after, key=lambda point: abs(point["zoom"] - 0.3))
    assert len(searched(tmp_path / "study.log", 2)[0]) == 2  # a smaller total takes its first trials
    assert len(searched(tmp_path / "study.log", 3, name="other data")[1]) == 3


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_the_same_trials_are_drawn_whether_or_not_the_search_was_interrupted(tmp_path: Path, sampler: str) -> None:
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    _, uninterrupted = searched(tmp_path / "one.log", 9, sampler=sampler)
    interrupted = [point for n in (2, 3, 9) for point in searched(tmp_path / "two.log", n, sampler=sampler)[1]]
    assert interrupted == uninterrupted and len(set(map(str, interrupted))) == 9


@pytest.mark.parametrize("partial_line", [b'{"op_code": 4, "wor', b"\xff\xfe"])
def test_a_partial_last_line_is_moved_to_another_file(tmp_path: Path, partial_line: bytes) -> None:
    journal = tmp_path / "study.log"
    searched(journal, 3)
    complete_lines = journal.read_bytes()
    repair_journal(journal)
    assert journal.read_bytes() == complete_lines and not journal.with_suffix(".torn").exists()
    journal.write_bytes(complete_lines + partial_line)
    trials, tried = searched(journal, 4)
    assert (len(trials), len(tried)) == (4, 1)
    assert journal.read_bytes().startswith(complete_lines) and journal.with_suffix(".torn").read_bytes() == partial_line


def test_the_last_trial_is_run_once_although_another_worker_starts_it_after_this_one_has_looked(tmp_path: Path) -> None:
    path, tried = tmp_path / "study.log", list[Values]()

    class Late(Journal):
        has_looked = False

        def get_all_trials(self, study_id: int, deepcopy: bool = True, states=None) -> list[FrozenTrial]:
            trials = super().get_all_trials(study_id, deepcopy, states)
            if states is None and not self.has_looked:
                self.has_looked = True
                assert searched(path, 1)[1] == [OWN]
            return trials

    study = open_study(Late(JournalFileBackend(str(path), lock_obj=JournalLock(path))), settings(1))
    run_worker(study, settings(1), lambda values, trial: tried.append(values) or distance(values, trial))
    assert tried == [] and len(finished_trials(study.get_trials(), settings(1))) == 1


def test_values_that_end_their_worker_again_and_again_are_replaced_except_the_own_ones(tmp_path: Path) -> None:
    tried: list[Values] = []

    def broken(values: Values, trial: Trial) -> Evaluation:
        tried.append(values)
        if len(tried) <= 3 or trial.number in (4, 5):
            raise KeyError("a mistake")
        return distance(values, trial)

    for _ in range(6):
        study = open_study(open_storage("", tmp_path / "study.log"), settings(3))
        with suppress(KeyError):
            run_worker(study, settings(3), broken)
    assert [values == OWN for values in tried] == [True] * 4 + [False] * 4
    assert tried[4] == tried[5] != tried[6]  # repeated once, then replaced
    assert len(finished_trials(study.get_trials(), settings(3))) == 3


@pytest.mark.parametrize("beats", [0, 8])
def test_a_trial_of_another_machine_is_left_alone_while_its_heart_beats(tmp_path: Path, beats: int) -> None:
    study = open_study(open_storage("", tmp_path / "study.log"), settings(1))
    trial = study.ask()

    def live() -> None:
        for beat in range(beats):
            trial.set_user_attr("beat", beat)
            time.sleep(0.25)
        if beats:
            study.tell(trial, 0.5)

    thread, started = threading.Thread(target=live), time.monotonic()
    thread.start()
    run_worker(study, settings(1, heartbeat=0.3), distance)
    thread.join()
    assert time.monotonic() - started > 0.9  # three heartbeats
    assert [t.state.name for t in study.get_trials()] == (["COMPLETE"] if beats else ["FAIL", "COMPLETE"])


def test_a_worker_whose_trial_was_given_to_another_one_goes_on(tmp_path: Path) -> None:
    def suspended_once(values: Values, trial: Trial) -> Evaluation:
        if trial.number == 1:
            open_study(open_storage("", tmp_path / "study.log"), settings(3)).tell(1, state=TrialState.FAIL)
        return distance(values, trial)

    trials, tried = searched(tmp_path / "study.log", 3, suspended_once)
    assert len(trials) == 3 and tried.count(tried[1]) == 2


@pytest.mark.parametrize(("all_diverge", "score"), [(True, "inf"), (False, "nan")])
def test_values_that_diverge_are_finished_and_never_the_best(tmp_path: Path, all_diverge: bool, score: str) -> None:
    def diverges(values: Values, trial: Trial) -> Evaluation:
        if trial.number == 1:
            return Evaluation(float(score), 0.01)
        if values["zoom"] > 0 or all_diverge:
            raise ArithmeticError("the loss is nan")
        return distance(values, trial)

    trials, tried = searched(tmp_path / "study.log", 8, diverges)
    best = best_trial(trials)
    assert len(trials) == len(tried) == 8 and any(point["zoom"] > 0 for point in tried)
    assert best is None if all_diverge else best is not None and best.params["zoom"] <= 0
    assert all("diverged" in trial.user_attrs for trial in trials if trial.params["zoom"] > 0)


@pytest.mark.parametrize("pruner", ["asha", "percentile"])
def test_bad_trials_are_pruned_and_the_own_values_never(tmp_path: Path, pruner: str) -> None:
    def by_steps(values: Values, trial: Trial) -> Evaluation:
        result = distance(values, trial)
        for step in (12, 25, 38, 50, 75):
            trial.report(result.score, step)
            if origin_of(trial) != 0 and trial.should_prune():
                raise optuna.TrialPruned
        return result

    worst, log = {"zoom": -1.0, "weight_decay": 1.0}, tmp_path / "study.log"
    open_study(open_storage("", log), settings(14, own_values=worst)).ask()  # repeated after all others
    trials, _ = searched(log, 14, by_steps, pruner=pruner, own_values=worst)
    assert [(own.number > 3, own.state) for own in trials if origin_of(own) == 0] == [(True, TrialState.COMPLETE)]
    assert TrialState.PRUNED in {trial.state for trial in trials}
    assert max(trials, key=lambda trial: -abs(trial.params["zoom"] - 0.3)).state == TrialState.COMPLETE


def even(values: Values, trial: Trial) -> Evaluation:
    return Evaluation(0.5, 0.01)


def test_choices_whole_numbers_and_conditions_are_drawn_as_declared(tmp_path: Path) -> None:
    search = {
        "zoom": Dimension(low=0.4, high=0.8, step=0.2, when={"ema": (0.5,)}),
        "ema": Dimension(choices=(0.0, 0.5)),
        "epochs": Dimension(low=2, high=8, step=3),
        "flip": Dimension(choices=("none", "both")),
    }
    own = {"zoom": 0.5, "ema": 0.25, "epochs": 7, "flip": "horizontal"}  # all outside the space
    trials, tried = searched(tmp_path / "study.log", 16, even, search=search, own_values=own)
    assert tried[0] == {key: value for key, value in own.items() if key != "zoom"} and len(trials) == 16
    for values in tried[1:]:
        assert ("zoom" in values) == (values["ema"] == 0.5)
        assert values["epochs"] in (2, 5, 8, 7) and isinstance(values["epochs"], int)
        assert values.get("zoom", 0.4) in (0.4, pytest.approx(0.6), pytest.approx(0.8))
    assert {"none", "both"} <= {values["flip"] for values in tried}


def test_a_grid_is_searched_completely_after_the_own_values_and_warm_starts(tmp_path: Path) -> None:
    search = {"zoom": Dimension(low=-0.5, high=0.5, step=0.5), "weight_decay": Dimension(choices=(0.1, 1.0))}
    own = {"zoom": -0.5, "weight_decay": 0.1}
    changes = {"own_values": own, "warm_start": [{"zoom": 0.5}]}  # which is tried next; what it lacks is drawn
    trials, tried = searched(tmp_path / "study.log", 99, sampler="grid", search=search, **changes)
    assert tried[0] == own and tried[1]["zoom"] == 0.5 and len(trials) == 7
    assert {str(point) for point in grid(search)} == set(map(str, tried))


def test_a_study_ends_when_its_hours_are_used(tmp_path) -> None:
    def slow(values: Values, trial: Trial) -> Evaluation:
        time.sleep(0.1)
        return even(values, trial)

    finished, _ = searched(tmp_path / "study.log", 50, slow, hours=0.25 / 3600)
    assert len(finished) in {1, 2, 3} and "tune.hours" in choice.limit_reached(
        finished, settings(50, hours=0.25 / 3600)
    )


@pytest.mark.parametrize(("sampler", "package"), [("gp", "torch"), ("cmaes", "cmaes")])
def test_a_sampler_whose_package_is_missing_is_one_sentence(monkeypatch, sampler, package):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(UserError, match=f"needs the package {package}, which is not installed"):
        SeededByNumber(sampler, 1)


def test_a_database_that_cannot_be_reached_is_one_sentence_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UserError, match="cannot be opened") as error:
        open_storage("postgresql+psycopg://me:very-secret@127.0.0.1:1/none", tmp_path / "unused.log")
    assert "very-secret" not in str(error.value) and "://[hidden]@127.0.0.1:1" in str(error.value)


def test_four_workers_on_an_empty_postgresql_one_killed_finish_every_trial_once(tmp_path: Path, postgres: str) -> None:
    trials = 12
    # The first trial of the victim does not end by itself, and the others wait for it.
    pauses = (600.0, 0.3, 0.3, 0.3)
    victim, *_ = workers = [start_process(work_in, tmp_path, trials, seconds, postgres) for seconds in pauses]
    running: list[int] = []
    while not running:
        assert victim.is_alive()
        time.sleep(0.05)
        every = trials_of(tmp_path, trials, postgres)[1]
        running = [t.number for t in every if t.user_attrs.get("worker", "").endswith(f"/{victim.pid}")]
    victim.kill()
    assert exit_codes(workers) == [-signal.SIGKILL, 0, 0, 0]
    finished, every = trials_of(tmp_path, trials, postgres)
    assert len(finished) == len({origin_of(trial) for trial in finished}) == trials
    assert sorted(trial.number for trial in every) == list(range(len(every)))
    assert {trial.state.name for trial in every} <= {"COMPLETE", "FAIL"}
    assert every[running[0]].state == TrialState.FAIL and running[0] in {origin_of(trial) for trial in finished}
    assert len({str(sorted(trial.params.items())) for trial in finished}) == trials


def test_eight_workers_on_a_fresh_journal_run_every_trial_once(tmp_path: Path) -> None:
    assert exit_codes([start_process(work_in, tmp_path, 24, 0.05, "") for _ in range(8)]) == [0] * 8
    finished, every = trials_of(tmp_path, 24)
    started = [line for file in tmp_path.glob("started*") for line in file.read_text().splitlines()]
    assert len(finished) == len(started) == len(set(started)) == 24
    assert [trial.number for trial in every] == list(range(len(every)))
    assert [trial.params for trial in finished if trial.params == OWN] == [OWN]


# Tuned values replace the own ones only if they win by more than the noise over rows and seeds.
LABELS = np.arange(400) % 4


def predictions(accuracy: float, seed: int) -> np.ndarray:
    """(400, 4) probabilities whose argmax is right for about this share of the rows."""
    rng = np.random.default_rng(seed)
    right = rng.random(len(LABELS)) < accuracy
    answers = np.where(right, LABELS, (LABELS + rng.integers(1, 4, len(LABELS))) % 4)
    return np.eye(4)[answers]


def gain(before, after, metric: str = "accuracy", seed: int = 0):
    return choice.gain_over_own_values(LABELS, before, after, METRICS[metric], 4, seed)


@pytest.mark.parametrize("metric", ["macro_f1", "accuracy", "log_loss"])
def test_a_clear_improvement_is_a_gain_and_a_loss_is_none(metric: str) -> None:
    worse = [predictions(0.6, seed) * 0.9 + 0.025 for seed in (1, 2)]
    better = [predictions(0.8, seed) * 0.9 + 0.025 for seed in (3, 4)]
    assert gain(worse, better, metric).is_gain and not gain(better, worse, metric).is_gain


def test_equally_good_settings_win_about_as_often_as_one_standard_error_allows() -> None:
    """P(z > 1) is .16; a rule without noise would adopt half of them."""
    drawn = [[predictions(0.8, 1000 * n + seed) for seed in (0, 1, 500, 501)] for n in range(40)]
    assert np.mean([gain(four[:2], four[2:], seed=n).is_gain for n, four in enumerate(drawn)]) < 0.3


def test_seeds_that_disagree_widen_the_error() -> None:
    steady = gain([predictions(0.6, 1)] * 2, [predictions(0.8, 2)] * 2)
    torn = gain([predictions(0.8, 1), predictions(0.3, 2)], [predictions(0.8, 3)] * 2)
    assert torn.error > 3 * steady.error and (steady.seeds, steady.rows) == (2, 400)
