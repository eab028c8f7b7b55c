"""Child process of preflight, which libtpu may kill: sends each step's result to its parent when it has it."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from competition.config.params import Member
from competition.config.plugins import activate, load_plugins
from competition.files.child_process import Emit, Event, answer_parent
from competition.preflight.lowering import Part, Shapes, Unsupported, programs
from competition.preflight.topology import Topology, topology_named


def answer(request: Event, emit: Emit) -> None:
    """Lower and, unless the mode is "ops", compile all requested steps."""
    member = TypeAdapter(Member).validate_json(json.dumps(request["member"]))
    shapes = Shapes(**{**request["shapes"], "views": tuple(request["shapes"]["views"])})
    if request["plugins"]:
        activate(load_plugins(Path(request["plugins"])))
    if request["mode"] == "quick":
        import jax

        # Skips most optimizations: a third of the time, approximate memory (docs/preflight.md).
        jax.config.update("jax_optimization_level", "O0")
    topology = None if request["mode"] == "ops" else topology_named(request["topology"])
    steps = programs(request["backend"], member, shapes, request["steps"], topology)
    for step, parts in steps.items():
        emit("step", step=step, result=step_result(step, parts, topology, lambda text: emit("activity", text=text)))


def step_result(
    step: str, parts: Sequence[Part], topology: Topology | None, report: Callable[[str], None]
) -> dict[str, object]:
    """Lower and compile the programs of a step.

    Returns the verdict (lowers | fits | too_big | unsupported), the sums over the programs and their largest memory; on
    failure the message and the view whose transform failed.
    """
    from competition.preflight.compiling import Compiled, TooBig, compile_program

    total, lowering = Compiled(0, 0.0, 0.0, 0.0), 0.0
    for part in parts:
        name = f"{step}, view {part.view}" if part.view else step
        started = time.monotonic()
        try:
            report(f"{name}: lowering")
            program = part.lower()
            lowering += time.monotonic() - started
            if topology is not None:
                report(f"{name}: compiling")
                total = total.and_then(compile_program(program, topology), part.times)
        except (TooBig, Unsupported) as error:
            failure = {"message": str(error), "view": part.view, "lower_seconds": round(lowering, 1)}
            if isinstance(error, TooBig):
                return {**failure, "verdict": "too_big", "memory": error.needed}
            return {**failure, "verdict": "unsupported", "operations": list(error.operations)}
    compiled = {**asdict(total), "compile_seconds": round(total.compile_seconds, 1)}
    success = {"verdict": "lowers"} if topology is None else {"verdict": "fits", **compiled}
    return {"lower_seconds": round(lowering, 1), **success}


if __name__ == "__main__":
    answer_parent(answer, lambda error: {"message": f"{type(error).__name__}: {error}"})
