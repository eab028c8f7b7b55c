"""Charts of a study are named after the metric, mark pruned trials, and explain only the marks that they have."""

from collections.abc import Callable
from typing import Any

import optuna
import pytest

from competition.report.tuning import ScoreAxis, importance_line, log_ticks, score_axis, scored_trials, study_charts


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def study(score: Callable[[int], float], trials: int = 6, prune: int = -1) -> list[Any]:
    """Trials of a study of a learning rate and a choice; trial 0 has the own values, `prune` is pruned half-way."""
    one = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    for number in range(trials):
        trial = one.ask()
        trial.set_user_attr("ticket", number)
        trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
        trial.suggest_categorical("flip", ["none", "horizontal"])
        trial.report(score(number) / 2, 50)
        if number == prune:
            one.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            trial.report(score(number), 100)
            one.tell(trial, score(number))
    return one.get_trials()


def drawn(trials: list[Any], sign: int = 1) -> tuple[list[str], str, ScoreAxis]:
    scored = scored_trials(trials, sign)
    axis = score_axis(scored, "macro_f1", sign)
    charts = study_charts(trials, {}, axis)
    return list(charts.drawings), charts.note, axis


def test_every_chart_is_of_the_metric_and_no_text_is_optunas() -> None:
    charts, note, _ = drawn(study(lambda n: 0.9 + n / 100))
    assert [chart.partition(" by ")[2].partition(" of")[0] for chart in charts[1:3]] == ["learning_rate", "flip"]
    assert all("macro_f1" in chart and "Objective" not in chart for chart in charts) and len(charts) == 4
    assert "the best is 0.9500 in trial 5" in charts[0]
    assert note == "Gold: the best trial. ◆ the member's own values."


def test_a_trial_that_learned_nothing_does_not_compress_the_others() -> None:
    _, note, axis = drawn(study(lambda n: 0.01 if n == 4 else 0.9 + n / 100, trials=9))
    assert axis.low > 0.85 and "▼ a score too far off" in note


def test_a_smaller_loss_is_the_better_one() -> None:
    charts, _, axis = drawn(study(lambda n: -0.3 - n / 100), sign=-1)  # a study maximises
    assert "the best is 0.3000 in trial 0" in charts[0] and 0.25 < axis.low < axis.high < 0.4


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0007, 0.0045, [0.001, 0.002, 0.004]),
        (0.0009, 0.011, [0.001, 0.002, 0.005, 0.01]),
        (1e-6, 1.0, [1e-6, 1e-4, 1e-2, 1.0]),
        (0.0031, 0.0038, [0.0031, 0.0038]),
    ],
)
def test_logarithmic_ticks_are_few_and_round(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_one_sentence_says_which_parameters_are_worth_searching() -> None:
    assert "needs 4 complete trials, and there are 3" in importance_line({}, 3)
    assert importance_line({"a": 0.0}, 9).startswith("No parameter distinguishes good trials")
    line = importance_line({"rate": 0.7, "decay": 0.25, "flip": 0.05}, 9)
    assert line.startswith("Worth searching: rate (70%), decay (25%); hardly: flip") and "rough guide" in line
    assert "rough" not in importance_line({"rate": 1.0}, 20)
