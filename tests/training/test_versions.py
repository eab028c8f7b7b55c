"""Results change only with their version: TRAINING, PREDICTION, FEATURES, HEADS and BLEND are raised when, and only when, they do."""

import json

import pytest
from reference_results import BACKENDS, RECORDED, changed_cases, computed, versions

RECORDED_RESULTS = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("engine", [*BACKENDS, "ensemble"])
def test_results_are_the_recorded_ones_of_their_version(engine: str) -> None:
    if engine == "jax":
        pytest.importorskip("jax", reason="the second backend needs JAX (goldfold[jax])")
    for kind in changed_cases(computed(engine), RECORDED_RESULTS[engine]):
        pytest.fail(
            f"the results of {kind} ({engine}) differ from those recorded for {kind.upper()} = {versions()[kind]}. If they "
            f"should: raise {kind.upper()} (competition/training/versions.py, or ensemble/chain.py for BLEND) and run "
            "`python tests/reference_results.py`. Every user's results of this kind are then computed again. If they should "
            "not: this change is a mistake."
        )


def test_the_recorded_results_are_of_the_present_versions() -> None:
    assert RECORDED_RESULTS["versions"] == versions(), "run `python tests/reference_results.py`"
