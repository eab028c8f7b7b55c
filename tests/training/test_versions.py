"""Results change only with their version: TRAINING, PREDICTION, FEATURES, HEADS and BLEND are raised when, and only when, they do."""

import json

import pytest
import reference_results as reference

RECORDED_RESULTS = json.loads(reference.RECORDED.read_text())


@pytest.mark.parametrize("engine", ["tensorflow", "jax", "ensemble"])
def test_results_are_the_recorded_ones_of_their_version(engine: str) -> None:
    if engine == "jax":
        pytest.importorskip("jax", reason="the second backend needs JAX (goldfold[jax])")
        results = reference.computed(engine)
    elif engine == "tensorflow":
        results = reference.results_of_engine()
    else:
        results = reference.results_of_heads() | reference.results_of_blend()
    for kind in reference.changed_cases(results, RECORDED_RESULTS[engine]):
        pytest.fail(
            f"the results of {kind} ({engine}) differ from those recorded for {kind.upper()} = {reference.versions()[kind]}. If they "
            f"should: raise {kind.upper()} (competition/training/versions.py, or ensemble/chain.py for BLEND) and run "
            "`python tests/reference_results.py`. Every user's results of this kind are then computed again. If they should "
            "not: this change is a mistake."
        )


def test_the_recorded_results_are_of_the_present_versions() -> None:
    assert RECORDED_RESULTS["versions"] == reference.versions(), "run `python tests/reference_results.py`"
