"""The sentence at the end of a study: which values are used, and why, with the difference and its standard error."""

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from competition.tuning.choice import TrialGain
from pipelines.main_job.tune import conclusion

OWN, OTHER = {"learning_rate": 0.004}, {"learning_rate": 0.001}


def trial(number: int, score: float | None) -> FrozenTrial:
    """A finished trial; score None: it diverged.  Number 0 has the member's own values."""
    values = OWN if number == 0 else OTHER
    state = TrialState.PRUNED if score is None else TrialState.COMPLETE
    attributes = {"error": 0.0031}
    distributions = {"learning_rate": FloatDistribution(1e-4, 1e-1, log=True)}
    finished = create_trial(state=state, params=values, distributions=distributions, value=score, user_attrs=attributes)
    finished.number = number
    return finished


@pytest.mark.parametrize(
    ("scores", "comparison", "values", "sign", "expected"),
    [
        ([-0.3, -0.4], None, OWN, -1, "own values have the best score, 0.3000 ± 0.0031, 0.1000 better than trial 1, so"),
        ([0.95, 0.97], TrialGain(0.001, 0.0042, 2, 269), OWN, 1, "+0.0010 ± 0.0042 on 269 rows that chose neither (training "
         "seeds: 2), not more than its standard error, so `make train` keeps the own values, "),
        ([None, None], None, OWN, 1, "no trial came to its end, because all diverged, so `make train` keeps the member's own "
         "values, learning_rate 0.004; lower train.learning_rate or the intervals of tune.search"),
    ],
)  # fmt: skip
def test_one_sentence_says_which_values_are_used_and_why(scores, comparison, values, sign, expected) -> None:
    trials = [trial(number, score) for number, score in enumerate(scores)]
    result = {"comparison": comparison, "values": values, "metric": "accuracy" if sign > 0 else "log_loss"}
    sentence = conclusion(result, trials, sign)
    assert expected in sentence and f"learning_rate {values['learning_rate']}" in sentence
