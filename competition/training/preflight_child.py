"""One preflight in a process of its own, which libtpu may end: a request (JSON file) in, an answer (JSON file) out.

    python -m competition.training.preflight_child request.json answer.json

Lines on stdout say what it is at. The answer is written after every step, so a crash loses only the one in flight.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from competition.manifest import write_json
from competition.params import Member
from competition.training.lowering import Shapes, Unsupported, programs
from competition.training.topology import QUIET, Topology, topology_named


def main(request_file: Path, answer_file: Path) -> None:
    request = json.loads(request_file.read_text(encoding="utf-8"))
    member = TypeAdapter(Member).validate_json(json.dumps(request["member"]))
    shapes = Shapes(**{**request["shapes"], "views": tuple(request["shapes"]["views"])})
    answers: dict[str, Any] = {}
    topology = None if request["mode"] == "ops" else topology_named(request["topology"])
    steps = programs(request["backend"], member, shapes, request["steps"], topology)
    for step, lower in steps.items():
        answers[step] = answer_of(step, lower, topology)
        write_json(answer_file, answers)


def end_with_parent() -> None:
    """Standard input closes when the parent dies, however it dies: then nobody waits for the answer."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def answer_of(step: str, lower: Callable[[], Any], topology: Topology | None) -> dict[str, Any]:
    """verdict: lowers | fits | too_big | unsupported, and what goes with it."""
    from competition.training.compiling import TooBig, compile_program

    print(f"{step}: lowering", flush=True)
    started, answer = time.monotonic(), {}
    try:
        program = lower()
        answer["lower_seconds"] = round(time.monotonic() - started, 1)
        if topology is None:
            return {**answer, "verdict": "lowers"}
        print(f"{step}: compiling", flush=True)
        compiled = compile_program(program, topology)
        return {**answer, "verdict": "fits", **asdict(compiled)}
    except TooBig as error:
        return {**answer, "verdict": "too_big", "memory": error.needed, "message": str(error)}
    except Unsupported as error:
        return {**answer, "verdict": "unsupported", "operations": list(error.operations), "message": str(error)}


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    end_with_parent()
    os.environ.update(QUIET)
    os.environ["KERAS_BACKEND"] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["backend"]
    main(Path(sys.argv[1]), Path(sys.argv[2]))
