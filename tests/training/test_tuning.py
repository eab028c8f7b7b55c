"""A study survives its process: finished trials count, unfinished ones do not, a partial last line does no harm."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from competition.training.tuning import repair_journal, search, with_values
from world import ROOT, member

from competition.config.params import Interval
from competition.config.params_file import Override

SPACE = {"x": Interval(low=-1.0, high=1.0, log=False), "y": Interval(low=1e-3, high=1.0, log=True)}


def searched(
    journal: Path,
    trials: int,
    evaluate: Callable[..., float] = lambda values, report: -abs(values["x"] - 0.3),
    made_from: str = "data",
) -> tuple[dict[str, float], float, int, list[dict[str, float]]]:
    """The result of `search`, and the points evaluated by this call."""
    tried: list[dict[str, float]] = []

    def recorded(values: dict[str, float], report: Any) -> float:
        tried.append(values)
        return evaluate(values, report)

    return *search(SPACE, trials, 1, made_from, journal, recorded, lambda done, total: None), tried


def test_the_best_values_are_those_of_the_best_trial(tmp_path: Path) -> None:
    values, score, done, tried = searched(tmp_path / "study.log", 6)
    best = min(tried, key=lambda point: abs(point["x"] - 0.3))
    assert (values, done, len(tried)) == (best, 6, 6)
    assert score == pytest.approx(-abs(best["x"] - 0.3))
    assert all(-1 <= point["x"] <= 1 and 1e-3 <= point["y"] <= 1 for point in tried)


def test_trials_of_an_earlier_process_count(tmp_path: Path) -> None:
    *_, before = searched(tmp_path / "study.log", 3)
    *_, after = searched(tmp_path / "study.log", 5)
    assert (len(before), len(after)) == (3, 2)
    assert not [point for point in after if point in before]
    values, _, done, again = searched(tmp_path / "study.log", 5)
    assert again == [] and done == 5
    assert values in before + after


def test_the_same_trials_are_drawn_whether_or_not_the_search_was_interrupted(tmp_path: Path) -> None:
    *_, uninterrupted = searched(tmp_path / "one.log", 5)
    interrupted = [point for trials in (2, 3, 5) for point in searched(tmp_path / "two.log", trials)[3]]
    assert interrupted == uninterrupted


def test_other_data_is_another_study(tmp_path: Path) -> None:
    searched(tmp_path / "study.log", 3)
    *_, tried = searched(tmp_path / "study.log", 3, made_from="other data")
    assert len(tried) == 3


@pytest.mark.parametrize("partial_line", [b'{"op_code": 4, "wor', b"\xff\xfe", b"{"])
def test_a_partial_last_line_is_moved_to_another_file(tmp_path: Path, partial_line: bytes) -> None:
    journal = tmp_path / "study.log"
    searched(journal, 3)
    complete_lines = journal.read_bytes()
    journal.write_bytes(complete_lines + partial_line)
    *_, done, tried = searched(journal, 4)
    assert (done, len(tried)) == (4, 1)
    assert journal.read_bytes().startswith(complete_lines) and journal.with_suffix(".torn").read_bytes() == partial_line
    assert searched(journal, 4)[3] == []


def test_a_complete_journal_is_not_changed(tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    repair_journal(journal)
    assert not journal.exists()
    searched(journal, 1)
    before = journal.read_bytes()
    repair_journal(journal)
    assert journal.read_bytes() == before and not journal.with_suffix(".torn").exists()


KILLED_IN_A_TRIAL = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_tuning import searched
count = iter(range(9))
searched(Path(sys.argv[1]), 5, lambda values, report: 0.0 if next(count) < 2 else os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_trial_that_was_killed_does_not_count(tmp_path: Path) -> None:
    paths = map(str, (tmp_path / "study.log", ROOT, ROOT / "tests", Path(__file__).parent))
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_A_TRIAL, *paths], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    *_, done, tried = searched(tmp_path / "study.log", 5)
    assert (done, len(tried)) == (5, 3)


def test_a_trial_that_diverges_does_not_count(tmp_path: Path) -> None:
    def fails_first(values: dict[str, float], report: Any) -> float:
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ArithmeticError("the loss is nan")
        return values["x"]

    *_, done, tried = searched(tmp_path / "study.log", 2, fails_first)
    assert (done, len(tried)) == (2, 3)


def test_a_search_in_which_everything_diverges_ends(tmp_path: Path) -> None:
    def diverges(values: dict[str, float], report: Any) -> float:
        raise ArithmeticError("the loss is nan")

    with pytest.raises(ArithmeticError):
        searched(tmp_path / "study.log", 2, diverges)


def test_tuned_values_reach_the_member_with_their_origin() -> None:
    before = member(epochs=9)
    after, origins = with_values("cnn", before, {"learning_rate": 0.5, "weight_decay": 0.25}, [])
    assert (after.train.learning_rate, after.train.weight_decay, after.train.epochs) == (0.5, 0.25, 9)
    assert origins == {"learning_rate": "0.5 (tuned)", "weight_decay": "0.25 (tuned)"}


@pytest.mark.parametrize("path", [("train", "weight_decay"), ("members", "cnn", "train", "weight_decay")])
def test_an_override_has_precedence_over_a_tuned_value(path: tuple[str, ...]) -> None:
    before = member(weight_decay=0.125)
    values = {"learning_rate": 0.5, "weight_decay": 0.25}
    after, origins = with_values("cnn", before, values, [Override(path, 0.125)])
    assert (after.train.learning_rate, after.train.weight_decay) == (0.5, 0.125)
    assert origins["weight_decay"] == "0.125 (SET)"


def test_an_override_of_another_block_has_no_effect() -> None:
    after, _ = with_values("cnn", member(), {"weight_decay": 0.25}, [Override(("other", "weight_decay"), 1)])
    assert after.train.weight_decay == 0.25


def test_an_override_of_one_member_leaves_the_tuned_value_of_another() -> None:
    override = Override(("members", "mobilenet", "train", "weight_decay"), 0.125)
    after, origins = with_values("cnn", member(weight_decay=0.5), {"weight_decay": 0.25}, [override])
    assert after.train.weight_decay == 0.25 and origins == {"weight_decay": "0.25 (tuned)"}


def test_an_override_of_a_train_block_has_precedence_for_its_keys() -> None:
    before, override = member(weight_decay=0.125), Override(("members", "cnn", "train"), {"weight_decay": 0.125})
    after, _ = with_values("cnn", before, {"learning_rate": 0.5, "weight_decay": 0.25}, [override])
    assert (after.train.learning_rate, after.train.weight_decay) == (0.5, 0.125)
