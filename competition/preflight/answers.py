"""Check whether a member's training and prediction steps compile and fit on a TPU, with the TPU's compiler and no TPU.

The compiler runs in a child process. Results are cached by the digest of everything that is compiled in.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.files.manifest import write_json
from competition.preflight.compile_process import Report, results_of_child
from competition.preflight.pairs import JaxPair
from competition.preflight.remedies import INSTALL, remedy_for
from competition.preflight.request import PreflightRequest, PreflightResult, compiled_in, result_from_json
from competition.preflight.topology import roofline_seconds

SAFE_SHARE = 0.8  # of the memory; a quick result above it is compiled again at full effort


def require_compiler(mode: str, backend: str, pair: JaxPair) -> None:
    """Raise UserError, with the install command, if a package needed for this mode and backend is missing."""
    if pair.environment:
        if not Path(pair.interpreter).exists():
            raise UserError(
                f"{pair.environment} not found, which compiles with {pair.title}; `make preflight PAIR={pair.name}` makes it"
            )
        return
    required = [p for p in ("jax", "libtpu") if mode != "ops" or (p == "jax" and backend == "jax")]
    missing = [package for package in required if find_spec(package) is None]
    if missing:
        alternative = "; MODE=ops works without it on the TensorFlow backend" if mode != "ops" else ""
        raise UserError(
            f"{' and '.join(missing)} not found, needed to compile. Install it with `{INSTALL}` or `make preflight`{alternative}"
        )


def run_preflight(
    request: PreflightRequest,
    steps: Sequence[str],
    cache: Path,
    report: Report,
    limit_seconds: float,
    again: bool = False,
) -> dict[str, PreflightResult]:
    """Return a result for each of `steps`, from `cache` or from a child process; new results are cached.

    In mode "quick", a step that needs more than SAFE_SHARE of the memory is compiled again in mode "compile".
    limit_seconds: a child with a program that takes longer is killed, and its step counts as crashed.  again: ignore the cache.
    """
    results = {} if again else cached_results(request, steps, cache)
    missing = [step for step in steps if step not in results]
    if missing:
        require_compiler(request.mode, request.backend, request.pair)
        for step, raw in results_of_child(request, missing, report, limit_seconds).items():
            batch = request.shapes.batch if step == "train" else request.shapes.predict_batch
            facts = {"step": step, "batch": batch, "limit": request.topology.memory, "mode": request.mode}
            result = result_from_json({**facts, "operations": (), **raw})
            roofline = roofline_seconds(request.topology, result.flops, result.moved)
            results[step] = result = replace(result, roofline=roofline, remedy=remedy_for(result))
            if result.verdict != "crashed":
                store_result(request, result, cache)
    uncertain = [
        step
        for step in steps
        if results[step].verdict == "too_big" or results[step].memory > SAFE_SHARE * results[step].limit
    ]
    if request.mode == "quick" and uncertain:
        results |= run_preflight(replace(request, mode="compile"), uncertain, cache, report, limit_seconds, again)
    return {step: results[step] for step in steps}


def cached_results(request: PreflightRequest, steps: Sequence[str], cache: Path) -> dict[str, PreflightResult]:
    """Return the cached results of exactly this request, by step."""
    depends, results = compiled_in(request), {}
    for step in steps:
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # missing, damaged or of an earlier version
            cached = json.loads(_cache_file(depends, step, cache).read_text(encoding="utf-8"))
            results[step] = result_from_json(cached["answer"])
    return results


def store_result(request: PreflightRequest, result: PreflightResult, cache: Path) -> None:
    """Write the result to the cache."""
    depends = compiled_in(request)
    write_json(_cache_file(depends, result.step, cache), {"depends": depends, "answer": result})


def _cache_file(depends: Mapping[str, object], step: str, cache: Path) -> Path:
    return cache / f"{digest_of({**depends, 'step': step})[:32]}.json"
