import pytest
from builders import params

from competition.config.errors import UserError
from competition.ensemble.settings import validate_params


@pytest.mark.parametrize(
    ("sets", "answer"),
    [
        ("blend.methods=[stackng]", r"blend.methods: 'stackng' is not known; did you mean 'stacking'\?"),
        ("blend.methods=[optuna]", "blend.methods: 'optuna' is not known; known are equal, best, bagged"),
        ("decision.rules=[per_class]", "decision.rules: 'per_class' is not known"),
    ],
)
def test_an_unknown_candidate_is_an_error_before_training(sets, answer):
    with pytest.raises(UserError, match=answer):
        validate_params(params(sets))
