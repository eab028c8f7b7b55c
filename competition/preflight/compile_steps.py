"""Check whether a member's training and prediction steps compile and fit on a TPU, with the TPU's compiler and no TPU.

The compiler runs in a child process. Results are cached by the digest of everything that is compiled in.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from competition.config.digests import to_plain
from competition.config.errors import UserError
from competition.files.child_process import ChildEnded, ChildStalled, run_child
from competition.preflight.lowering import LONGEST_MESSAGE
from competition.preflight.pairs import ROOT, JaxPair
from competition.preflight.results import (
    PreflightRequest,
    PreflightResult,
    cached_results,
    store_result,
)
from competition.preflight.topology import QUIET

INSTALL = "python -m pip install -c constraints.txt -e '.[preflight]'"

Report = Callable[[str], None]  # called with what the child process does now
SAFE_SHARE = 0.8  # of the memory; a quick result above it is compiled again at full effort


def require_compiler(mode: str, backend: str, pair: JaxPair) -> None:
    """Raise UserError, with the install command, if a package needed for this mode and backend is missing."""
    if pair.environment:
        if not (ROOT / pair.environment / "bin" / "python").exists():
            raise UserError(f"{pair.environment} was not found; `make preflight PAIR={pair.name}` makes it")
        return
    required = [p for p in ("jax", "libtpu") if mode != "ops" or (p == "jax" and backend == "jax")]
    missing = [package for package in required if find_spec(package) is None]
    if missing:
        remedy = f"install it with `{INSTALL}` or `make preflight`"
        remedy += "; MODE=ops works without it on the TensorFlow backend" if mode != "ops" else ""
        raise UserError(f"{' and '.join(missing)} was not found, which compiles for TPUs; {remedy}")


def run_preflight(
    request: PreflightRequest, steps: Sequence[str], cache: Path, report: Report, timeout: float, again: bool = False
) -> dict[str, PreflightResult]:
    """Return a result for each of `steps`, from `cache` or from a child process; new results are cached.

    In mode "quick", a step that needs more than SAFE_SHARE of the memory is compiled again in mode "compile".
    timeout: seconds; a child with a program that takes longer is killed, and its step counts as crashed.  again: ignore the cache.
    """
    results = {} if again else cached_results(request, steps, cache)
    missing = [step for step in steps if step not in results]
    if missing:
        require_compiler(request.mode, request.backend, request.pair)
        for step, raw in results_of_child(request, missing, report, timeout).items():
            batch = request.shapes.batch if step == "train" else request.shapes.predict_batch
            facts = {**raw, "operations": tuple(raw.get("operations", ()))}
            result = PreflightResult(step, batch, limit=request.topology.memory, mode=request.mode, **facts)
            # A lower bound: the roofline model (Williams et al. 2009) with published peak rates, which are never reached.
            roofline = max(result.flops / request.topology.flops, result.moved / request.topology.bandwidth)
            results[step] = result = replace(result, roofline=roofline)
            if result.verdict != "crashed":
                store_result(request, result, cache)
    most = SAFE_SHARE * request.topology.memory
    uncertain = [step for step in steps if results[step].verdict == "too_big" or results[step].memory > most]
    if request.mode == "quick" and uncertain:
        results |= run_preflight(replace(request, mode="compile"), uncertain, cache, report, timeout, again)
    return {step: results[step] for step in steps}


def results_of_child(
    request: PreflightRequest, steps: Sequence[str], report: Report, timeout: float
) -> dict[str, dict[str, Any]]:
    """Raw results by step; a step that ended the process is "crashed", and so are the later ones.

    timeout: seconds; a child whose program takes longer to lower or to compile is killed.
    """
    named = {"topology": request.topology.name, "steps": list(steps), "pair": request.pair.name}
    content = to_plain({**vars(request), **named})
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **QUIET, "KERAS_BACKEND": request.backend}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    results: dict[str, dict[str, object]] = {}
    message = ""
    own = request.pair.environment
    python = str(ROOT / own / "bin" / "python") if own else sys.executable
    child = run_child("competition.preflight.child", content, environment, timeout, python)
    try:
        with closing(child):
            for event in child:
                if event["event"] == "activity":
                    report(event["text"])
                elif event["event"] == "step":
                    results[event["step"]] = event["result"]
                elif event["event"] == "error":
                    message = " ".join(event["message"].split())[:LONGEST_MESSAGE]
    except ChildStalled as error:
        message = f"{error}; LIMIT= allows more"
    except ChildEnded as error:
        message = f"the compiler's process ended: {(str(error).strip().splitlines() or ['no output'])[-1]}"
        if request.mode != "ops":  # libtpu was loaded
            remedy = f"delete {own} and run `make preflight PAIR={request.pair.name}`" if own else f"`{INSTALL}`"
            message = " ".join(message.split())[:LONGEST_MESSAGE]
            message += f"; jax and libtpu may be incompatible: {remedy} installs the pinned versions"
    crashed = {"verdict": "crashed", "message": message}
    return {step: results.get(step, crashed) for step in steps}
