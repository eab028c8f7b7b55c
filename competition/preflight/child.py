"""One preflight in a process of its own, which libtpu may end: a request (JSON file) in, an answer (JSON file) out.

    python -m competition.preflight.child request.json answer.json

Lines on stdout say what it is at. The answer is written after every step, so a crash loses only the one in flight.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from competition.artifacts.manifest import write_json
from competition.config.params import Member
from competition.preflight.lowering import Part, Shapes, Unsupported, programs
from competition.preflight.topology import QUIET, Topology, topology_named


def main(request_file: Path, answer_file: Path) -> None:
    request = json.loads(request_file.read_text(encoding="utf-8"))
    member = TypeAdapter(Member).validate_json(json.dumps(request["member"]))
    shapes = Shapes(**{**request["shapes"], "views": tuple(request["shapes"]["views"])})
    answers: dict[str, Any] = {}
    if request["mode"] == "quick":
        with_little_effort()
    topology = None if request["mode"] == "ops" else topology_named(request["topology"])
    steps = programs(request["backend"], member, shapes, request["steps"], topology)
    for step, parts in steps.items():
        answers[step] = answer_of(step, parts, topology)
        write_json(answer_file, answers)


def with_little_effort() -> None:
    """The compiler leaves most optimization out: a third of the time, another memory (docs/preflight.md)."""
    import jax

    jax.config.update("jax_optimization_level", "O0")


def end_with_parent() -> None:
    """Standard input closes when the parent dies, however it dies: then nobody waits for the answer."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def answer_of(step: str, parts: Sequence[Part], topology: Topology | None) -> dict[str, Any]:
    """verdict: lowers | fits | too_big | unsupported, and what goes with it: of a step that is several programs the sums,
    and the largest memory of them. view: the one whose transform stands in the way."""
    from competition.preflight.compiling import Compiled, TooBig, compile_program

    made, lowering = Compiled(0, 0.0, 0.0, 0.0), 0.0
    for part in parts:
        of = f"{step}, view {part.view}" if part.view else step
        started = time.monotonic()
        try:
            print(f"{of}: lowering", flush=True)
            program = part.lower()
            lowering += time.monotonic() - started
            if topology is not None:
                print(f"{of}: compiling", flush=True)
                made = made.and_then(compile_program(program, topology), part.times)
        except (TooBig, Unsupported) as error:
            why = {"message": str(error), "view": part.view, "lower_seconds": round(lowering, 1)}
            if isinstance(error, TooBig):
                return {**why, "verdict": "too_big", "memory": error.needed}
            return {**why, "verdict": "unsupported", "operations": list(error.operations)}
    good = {"verdict": "lowers"} if topology is None else {"verdict": "fits", **asdict(made)}
    return {"lower_seconds": round(lowering, 1), **good}


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    end_with_parent()
    os.environ.update(QUIET)
    os.environ["KERAS_BACKEND"] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["backend"]
    main(Path(sys.argv[1]), Path(sys.argv[2]))
