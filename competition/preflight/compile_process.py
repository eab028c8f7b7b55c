"""Starts the child process that lowers and compiles (child.py) and reads its results."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from competition.config.digests import to_plain
from competition.config.plugins import active
from competition.files.child_process import ChildEnded, ChildStalled, run_child
from competition.preflight.lowering import one_line
from competition.preflight.pairs import ROOT
from competition.preflight.request import PreflightRequest
from competition.preflight.topology import QUIET

Report = Callable[[str], None]  # called with what the child process does now


def results_of_child(
    request: PreflightRequest, steps: Sequence[str], report: Report, limit_seconds: float
) -> dict[str, dict[str, Any]]:
    """Raw results by step; a step that ended the process is "crashed", and so are the later ones.

    limit_seconds: a child whose program takes longer to lower or to compile is killed.
    """
    content = {"topology": request.topology.name, "plugins": str(active().file or ""), "steps": list(steps)}
    content = to_plain({**vars(request), **content, "pair": request.pair.name})
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **QUIET, "KERAS_BACKEND": request.backend}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    results: dict[str, dict[str, object]] = {}
    message = ""
    child = run_child("competition.preflight.child", content, environment, limit_seconds, request.pair.interpreter)
    try:
        with closing(child):
            for event in child:
                if event["event"] == "activity":
                    report(event["text"])
                elif event["event"] == "step":
                    results[event["step"]] = event["result"]
                elif event["event"] == "error":
                    message = event["message"]
    except (ChildEnded, ChildStalled) as error:
        message = (str(error).strip().splitlines() or ["no output"])[-1]
    crashed = {"verdict": "crashed", "message": one_line(f"the compiler's process ended: {message}")}
    return {step: results.get(step, crashed) for step in steps}
