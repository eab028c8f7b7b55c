"""Child process of preflight, which libtpu may kill: reads a request (JSON file) and writes results (JSON file).

    python -m competition.preflight.child request.json result.json

Lines on stdout report the progress. The results are written after every step, so a crash loses only the current one.
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

from competition.config.params import Member
from competition.config.plugins import activate, load_plugins
from competition.files.manifest import write_json
from competition.preflight.lowering import Part, Shapes, Unsupported, programs
from competition.preflight.topology import QUIET, Topology, topology_named


def main(request_file: Path, result_file: Path) -> None:
    """Lower and, unless the mode is "ops", compile all requested steps."""
    request = json.loads(request_file.read_text(encoding="utf-8"))
    member = TypeAdapter(Member).validate_json(json.dumps(request["member"]))
    shapes = Shapes(**{**request["shapes"], "views": tuple(request["shapes"]["views"])})
    results: dict[str, Any] = {}
    if request["plugins"]:
        activate(load_plugins(Path(request["plugins"])))
    if request["mode"] == "quick":
        import jax

        # Skips most optimizations: a third of the time, approximate memory (docs/preflight.md).
        jax.config.update("jax_optimization_level", "O0")
    topology = None if request["mode"] == "ops" else topology_named(request["topology"])
    steps = programs(request["backend"], member, shapes, request["steps"], topology)
    for step, parts in steps.items():
        results[step] = step_result(step, parts, topology)
        write_json(result_file, results)


def end_with_parent() -> None:
    """Exit when the parent dies: standard input is then closed."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def step_result(step: str, parts: Sequence[Part], topology: Topology | None) -> dict[str, Any]:
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
            print(f"{name}: lowering", flush=True)
            program = part.lower()
            lowering += time.monotonic() - started
            if topology is not None:
                print(f"{name}: compiling", flush=True)
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
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    end_with_parent()
    os.environ.update(QUIET)
    os.environ["KERAS_BACKEND"] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["backend"]
    main(Path(sys.argv[1]), Path(sys.argv[2]))
