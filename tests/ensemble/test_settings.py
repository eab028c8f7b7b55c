from dataclasses import replace

import pytest
from builders import ROOT

from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.ensemble.settings import chain_settings, validate_params


@pytest.mark.parametrize(
    ("key", "names", "answer"),
    [
        ("calibrations", ("temprature",), "blend.calibrations: 'temprature' is not known; did you mean 'temperature'?"),
        ("calibrations", ("platt",), "blend.calibrations: 'platt' is not known; known are none, temperature"),
        ("methods", ("bag",), "blend.methods: 'bag' is not known"),
    ],
)
def test_an_unknown_candidate_is_an_error_before_training(key, names, answer):
    params = load_params(ROOT / "params.yaml")
    with pytest.raises(UserError) as user_error:
        validate_params(replace(params, blend=replace(params.blend, **{key: names})))
    assert answer in str(user_error.value)


def test_the_default_candidates_begin_with_the_plain_mean_and_hold_the_best_member():
    blend = chain_settings(validate_params(load_params(ROOT / "params.yaml")), "macro_f1").blend
    assert (blend.calibrations, blend.methods) == (("none",), ("stacking",))
