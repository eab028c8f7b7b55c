"""make kernel: a member that failed preflight is not pushed to a TPU."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROOT, params

from competition.config.errors import UserError
from competition.preflight.pairs import KAGGLE, NEWEST, PAIRS
from competition.preflight.results import PreflightResult, request_of, store_result
from competition.preflight.topology import GIB, topology_named
from competition.workspace.workspace import Workspace
from pipelines.kaggle.kernel import check_preflight
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job


def job_on(folder: Path, machine: str, verdict: str, force: bool = False) -> Job:
    """A job for `machine`, with the preflight verdict `verdict` for training the member cnn on a v5e-8."""
    parameters = params(f"kernel.machine={machine}")
    request = request_of(parameters.members["cnn"], parameters, topology_named("v5e-8"), "auto", 10)
    result = PreflightResult("train", 64, verdict, 20 * GIB, 16 * GIB, remedy="lower train.batch")
    store_result(request, result, folder / "preflight" / "answers")
    return Job(Workspace(folder, parameters), Options(force=force, debug=False), folder)


def test_a_step_that_does_not_fit_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    job = job_on(tmp_path, "TpuV5E8", "too_big")
    words = r"cnn train needs 20.00 GiB of memory .* 16.00 GiB .*: lower train.batch; .*FORCE=1"
    with pytest.raises(UserError, match=words):
        check_preflight(job, 10, job.params.members)


@pytest.mark.parametrize(
    ("verdict", "machine", "force", "warnings"),
    [
        ("fits", "TpuV5E8", False, 0),
        ("too_big", "NvidiaTeslaT4", False, 0),
        ("too_big", "TpuV5E8", True, 1),
    ],
)
def test_a_step_that_fits_or_a_gpu_or_force_is_accepted(tmp_path: Path, verdict, machine, force, warnings) -> None:
    job = job_on(tmp_path, machine, verdict, force)
    check_preflight(job, 10, {"cnn": job.params.members["cnn"]})
    assert sum("WARNING cnn train needs 20.00 GiB" in line for line in job.echoed) == warnings


@pytest.mark.parametrize(
    ("compiled_with", "verdict", "used"),
    [(KAGGLE, "fits", KAGGLE), (NEWEST, "fits", NEWEST), (KAGGLE, "too_big", KAGGLE), (None, "fits", NEWEST)],
)
def test_the_kernel_uses_the_jax_that_preflight_compiled_with(tmp_path: Path, compiled_with, verdict, used) -> None:
    parameters = params("kernel.machine=TpuV5E8")
    job, member = Job(Workspace(tmp_path, parameters), Options(force=True), tmp_path), parameters.members["cnn"]
    if compiled_with:
        request = request_of(member, parameters, topology_named("v5e-8"), "auto", 10)
        result = PreflightResult("train", 64, verdict, GIB, 16 * GIB)
        store_result(replace(request, pair=compiled_with), result, tmp_path / "preflight" / "answers")
    pair = check_preflight(job, 10, {"cnn": member})
    assert pair == {"jax": used.jax, "jaxlib": used.jax, "libtpu": used.libtpu}
    assert f"kernel: it trains with {used.title}" in job.echoed[-1]


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_pair_is_what_its_requirements_pin(pair) -> None:
    text = (ROOT / pair.requirements).read_text(encoding="utf-8")
    assert re.findall(r"^\W*(?:preflight = \[\")?jax==([\d.]+)", text, re.M) == [pair.jax]
    assert re.findall(r"jaxlib==([\d.]+)", text) == [pair.jax]
    assert re.findall(r"libtpu==([\d.]+)", text) == [pair.libtpu]
