"""Read preflight results without compiling: the request of a member, cached results, the cells of the table."""

from dataclasses import replace
from pathlib import Path

from competition.config.params import Member, Params
from competition.preflight.answers import cached_results
from competition.preflight.lowering import Shapes
from competition.preflight.request import PreflightRequest, PreflightResult
from competition.preflight.topology import GIB, Topology
from competition.training.device import round_up_batch

STEPS = ("train", "predict")
VERDICTS = {  # as shown to the user
    "fits": "fits",
    "lowers": "lowers",
    "too_big": "DOES NOT FIT",
    "unsupported": "UNSUPPORTED",
    "crashed": "CRASHED",
}
COLUMNS = ("member", "step", "batch", "verdict", "memory per device", "used", "minimum step time", "compiled in")
NOTE = "the minimum step time is a lower bound from published peak rates, not a measurement"


def request_of(
    member: Member, params: Params, topology: Topology, backend: str, classes: int, mode: str = "compile"
) -> PreflightRequest:
    """The request for a member, compiled with the newest jax.

    member: with tuned values.  backend: "auto" means jax, which TPU images use.
    """
    parts = topology.devices * member.train.accumulate
    batch, predict = round_up_batch(member.train.batch, parts), round_up_batch(params.predict.batch, topology.devices)
    shapes = Shapes(classes, topology.devices, batch, predict, tuple(params.predict.views))
    return PreflightRequest(member, shapes, topology, "jax" if backend == "auto" else backend, mode)


def objections(request: PreflightRequest, cache: Path) -> list[str] | None:
    """Return why this member would not run, one sentence per failing step; [] if it runs, None without cached results.

    Nothing is compiled. Only results of exactly this request count, so stale results are ignored.
    """
    quick = cached_results(replace(request, mode="quick"), STEPS, cache)
    results = {step: result for step, result in quick.items() if result.good} | cached_results(request, STEPS, cache)
    if not results:
        return None
    sentences = []
    for step, result in results.items():
        reason = f"uses {', '.join(result.operations) or 'an operation'}, which is not supported"
        if result.verdict == "too_big":
            available = f"{result.limit / GIB:.2f} GiB are available"
            reason = f"needs {result.memory / GIB:.2f} GiB of memory per device, {available}"
        sentences += [] if result.good else [f"{step} {reason}: {result.remedy}"]
    return sentences


def cells(member: str, step: str, result: PreflightResult) -> list[str]:
    """One row of the table with COLUMNS."""
    about, quickly = ("about ", " quickly") if result.mode == "quick" else ("", "")
    return [
        member,
        step.replace("_", ", "),
        f"{result.batch}",
        VERDICTS[result.verdict],
        f"{about}{result.memory / GIB:.2f} GiB" if result.memory else "?",
        f"{result.memory / result.limit:.0%}" if result.memory else "?",
        f"{1000 * result.roofline:.1f} ms" if result.roofline else "-",
        f"{result.compile_seconds:.0f} s{quickly}" if result.compile_seconds else "-",
    ]
