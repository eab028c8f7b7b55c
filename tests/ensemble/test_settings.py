from dataclasses import replace

import pytest
from builders import ROOT

from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.ensemble.settings import validate_params


@pytest.mark.parametrize(
    ("block", "key", "names", "answer"),
    [
        ("blend", "methods", ("stackng",), "blend.methods: 'stackng' is not known; did you mean 'stacking'?"),
        ("blend", "methods", ("optuna",), "blend.methods: 'optuna' is not known; known are equal, best, bagged"),
        ("decision", "rules", ("per_class",), "decision.rules: 'per_class' is not known"),
    ],
)
def test_an_unknown_candidate_is_an_error_before_training(block, key, names, answer):
    params = load_params(ROOT / "params.yaml")
    with pytest.raises(UserError) as user_error:
        validate_params(replace(params, **{block: replace(getattr(params, block), **{key: names})}))
    assert answer in str(user_error.value)
