"""make kernel: a member that failed preflight is not pushed to a TPU."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROOT, params

from competition.config.errors import UserError
from competition.config.params import Params
from competition.preflight.pairs import KAGGLE, NEWEST, PAIRS, JaxPair
from competition.preflight.results import PreflightResult, request_of, store_result
from competition.preflight.topology import GIB, topology_named
from competition.workspace.workspace import Workspace
from pipelines.kaggle.kernel import check_preflight
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job


def store(folder: Path, parameters: Params, verdict: str, pair: JaxPair = KAGGLE) -> None:
    """Store the preflight verdict for training the member cnn on a v5e-8."""
    request = request_of(parameters.members["cnn"], parameters, topology_named("v5e-8"), "auto", 10)
    result = PreflightResult("train", 64, verdict, 20 * GIB, 16 * GIB, remedy="lower train.batch")
    store_result(replace(request, pair=pair), result, folder / "preflight" / "answers")


def test_a_step_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    for verdict, machine, force, outcome in (
        ("too_big", "TpuV5E8", False, "refused"),
        ("too_big", "TpuV5E8", True, "warned"),
        ("too_big", "NvidiaTeslaT4", False, "accepted"),
        ("fits", "TpuV5E8", False, "accepted"),
    ):
        parameters = params(f"kernel.machine={machine}")
        store(tmp_path, parameters, verdict)
        job = Job(Workspace(tmp_path, parameters), Options(force=force), tmp_path)
        words = r"cnn train needs 20.00 GiB of memory .* 16.00 GiB .*: lower train.batch; .*FORCE=1"
        with pytest.raises(UserError, match=words) if outcome == "refused" else nullcontext():
            check_preflight(job, 10, {"cnn": parameters.members["cnn"]})
        warnings = [line for line in job.echoed if "WARNING cnn train needs 20.00 GiB" in line]
        assert len(warnings) == (outcome != "accepted")


def test_the_kernel_uses_the_jax_that_preflight_compiled_with(tmp_path: Path) -> None:
    cases = ((KAGGLE, "fits", KAGGLE), (NEWEST, "fits", NEWEST), (KAGGLE, "too_big", KAGGLE), (None, "fits", NEWEST))
    for number, (compiled_with, verdict, used) in enumerate(cases):
        folder, parameters = tmp_path / str(number), params("kernel.machine=TpuV5E8")
        job = Job(Workspace(folder, parameters), Options(force=True), folder)
        if compiled_with:
            store(folder, parameters, verdict, compiled_with)
        pair = check_preflight(job, 10, {"cnn": parameters.members["cnn"]})
        assert pair == {"jax": used.jax, "jaxlib": used.jax, "libtpu": used.libtpu}
        assert f"kernel: it trains with {used.title}" in job.echoed[-1]


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_pair_is_what_its_requirements_pin(pair: JaxPair) -> None:
    text = (ROOT / pair.requirements).read_text(encoding="utf-8")
    for package, version in (
        (r"^\W*(?:preflight = \[\")?jax", pair.jax),
        ("jaxlib", pair.jax),
        ("libtpu", pair.libtpu),
    ):
        assert re.findall(rf"{package}==([\d.]+)", text, re.M) == [version]
