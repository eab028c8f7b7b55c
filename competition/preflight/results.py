"""What preflight found, for those who only want to know: the question a member raises, kept answers, the table's cells."""

from dataclasses import replace
from pathlib import Path

from competition.config.params import Member, Params
from competition.preflight.answers import PreflightRequest, PreflightResult, cached_results
from competition.preflight.lowering import Shapes
from competition.preflight.topology import GIB, Topology
from competition.training.device import whole_batch

STEPS = ("train", "predict")
VERDICTS = {
    "fits": "fits",
    "lowers": "lowers",
    "too_big": "DOES NOT FIT",
    "unsupported": "UNSUPPORTED",
    "crashed": "CRASHED",
}
COLUMNS = ("member", "step", "batch", "verdict", "memory of a device", "full", "a step takes at least", "compiled in")
NOTE = "the least time of a step follows from published peaks: an estimate from below, no measurement"


def question_of(
    member: Member, params: Params, topology: Topology, backend: str, classes: int, mode: str = "compile"
) -> PreflightRequest:
    """member: as it is trained, tuned values put in.  backend: "auto" is what today's TPU images give the TPU to."""
    parts = topology.devices * member.train.accumulate
    batch, predict = whole_batch(member.train.batch, parts), whole_batch(params.predict.batch, topology.devices)
    shapes = Shapes(classes, topology.devices, batch, predict, tuple(params.predict.views))
    return PreflightRequest(member, shapes, topology, "jax" if backend == "auto" else backend, mode)


def objections(question: PreflightRequest, cache: Path) -> list[str] | None:
    """Why this member would not run there, one sentence per step; [] when it would, None when nobody has asked.

    Nothing is compiled: only an answer to exactly this question counts, so one that is out of date objects to nothing.
    """
    quick = cached_results(replace(question, mode="quick"), STEPS, cache)
    answers = {step: answer for step, answer in quick.items() if answer.good} | cached_results(question, STEPS, cache)
    if not answers:
        return None
    return [f"{step} {_why(answer)}: {answer.remedy}" for step, answer in answers.items() if not answer.good]


def _why(answer: PreflightResult) -> str:
    if answer.verdict == "too_big":
        return f"needs {answer.memory / GIB:.2f} GiB of the {answer.limit / GIB:.2f} GiB of a device"
    return f"uses {', '.join(answer.operations) or 'an operation'}, which has no form there"


def cells(member: str, step: str, answer: PreflightResult) -> list[str]:
    """One line of the table, under COLUMNS."""
    about, quickly = ("about ", " quickly") if answer.mode == "quick" else ("", "")
    return [
        member,
        step.replace("_", ", "),
        f"{answer.batch}",
        VERDICTS[answer.verdict],
        f"{about}{answer.memory / GIB:.2f} GiB" if answer.memory else "?",
        f"{answer.memory / answer.limit:.0%}" if answer.memory else "?",
        f"{1000 * answer.roofline:.1f} ms" if answer.roofline else "-",
        f"{answer.compile_seconds:.0f} s{quickly}" if answer.compile_seconds else "-",
    ]
