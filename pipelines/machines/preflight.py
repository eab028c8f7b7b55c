"""Check that the members run on a TPU: compile their steps for it without one; print memory, speed and remedies."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from competition.config.errors import Key, UserError, counted
from competition.config.params import Member
from competition.config.params_file import locate
from competition.config.yaml_text import line_of, read_text
from competition.files.manifest import write_json
from competition.preflight import results as preflight_results
from competition.preflight.compile_steps import require_compiler, run_preflight
from competition.preflight.pairs import NEWEST, PAIRS, JaxPair
from competition.preflight.planning import sizes_of
from competition.preflight.results import STEPS, VERDICTS, PreflightResult, remedy_for
from competition.preflight.topology import GIB, Topology, topology_named
from competition.training.backend import is_installed
from competition.training.device import TPU_FILES, TPU_SIGNS
from competition.workspace.studies import tuned_member
from pipelines.execution.selection import selected_members
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path, table_lines
from pipelines.terminal.progress import Bar

GRAIN = 8  # images per device: a TPU pads the batch dimension to multiples of 8


def run(job: Job) -> None:
    """params.yaml -> work/<competition>/preflight/<topology>.json, and a table on the screen"""
    options = job.options
    has_tpu = any(Path(path).exists() for path in TPU_FILES) or any(sign in os.environ for sign in TPU_SIGNS)
    if options.if_tpu and (not has_tpu or is_installed("tensorflow-tpu")):
        return  # TensorFlow's TPU wheel cannot lower on a CPU; its first step fails with the same message
    topology, pair = topology_named(options.topology), PAIRS[options.pair]
    backend = options.backend or job.params.device.backend
    if backend == "auto":  # JAX, since current TPU images support TPUs only with JAX
        backend = "jax" if options.mode != "ops" or is_installed("jax") else "tensorflow"
    require_compiler(options.mode, backend, pair)
    results: dict[str, dict[str, PreflightResult]] = {}
    changes: list[str] = []
    for name in selected_members(job):
        member = tuned_member(job.workspace, name)
        classes = sizes_of(job.path("data"), job.params).classes
        request = preflight_results.request_of(member, job.params, topology, backend, classes, options.mode)
        request = replace(request, pair=pair)
        is_trained = job.params.members[name].head is None  # else its network only computes features
        steps, answers = STEPS if is_trained else ["predict"], job.path("preflight", "answers")
        with Bar(None, f"preflight {name}") as bar:

            def show_step(activity: str, bar: Bar = bar) -> None:
                bar.text = activity
                bar.refresh()

            results[name] = run_preflight(request, steps, answers, show_step, options.limit, options.force)
        verdicts = ", ".join(f"{step} {VERDICTS[result.verdict]}" for step, result in results[name].items())
        job.echo(f"preflight {name}: {verdicts}")
        changes += lines_to_change(job, name, member, results[name], topology)
    suffix = "" if pair == NEWEST else f"-{pair.name}"
    file = job.path("preflight", f"{'ops' if options.mode == 'ops' else topology.name}{suffix}.json")
    facts = {
        "topology": topology.name,
        "pair": f"jax {pair.jax} with libtpu {pair.libtpu}",
        "backend": backend,
        "mode": options.mode,
        "devices": topology.devices,
    }
    write_json(file, {**facts, "members": results, "changes": changes})
    job.echo(*table(results, topology, backend, options.mode, pair), *changes)
    job.echo(f"preflight: full results in {display_path(file)}")
    failed = sum(not result.good for steps_of_member in results.values() for result in steps_of_member.values())
    if failed:
        total = sum(map(len, results.values()))
        raise UserError(f"{failed} of {total} steps would not run on {topology.name}; see the lines above")


def lines_to_change(
    job: Job, name: str, member: Member, results: dict[str, PreflightResult], topology: Topology
) -> list[str]:
    """For every step that would not run: the problem, the remedy and the line of the parameter file to change.

    member: with tuned values.
    """
    lines = []
    for step in STEPS:
        result = results.get(step)
        if result is None or result.good:
            continue
        if result.verdict == "crashed":
            lines.append(f"{name} {step}: {result.message}")
            continue
        keys: Sequence[Key] = ("members", name, "architecture")
        problem = f"{', '.join(result.operations)} is not supported on this TPU"
        if result.verdict == "too_big":
            keys, own = (step, "batch"), ("members", name, "train", "batch")
            if step == "train" and line_of(read_text(job.options.params), own)[0] == len(own):
                keys = own
            share = f"{result.memory / result.limit:.1f} times" if result.memory else "more than"
            # About how many images would fit, by proportion.
            estimate = int(result.batch * result.limit / result.memory) if result.memory else 0
            multiple = topology.devices * GRAIN if estimate >= topology.devices * GRAIN else topology.devices
            estimate = estimate // multiple * multiple
            fitting = (
                f"about {counted(estimate, 'image')} would fit" if estimate else "possibly not even one image fits"
            )
            problem = f"needs {share} the available memory; {fitting}"
        elif result.view:
            place = ("members", name) if job.params.members[name].views else ("predict",)
            keys = (*place, "views", job.params.views_of(job.params.members[name]).index(result.view))
        remedy = remedy_for(result, member)
        lines.append(f"{name} {step}: {problem}: {remedy} ({locate(job.options.params, keys)})")
    return lines


def table(
    results: dict[str, dict[str, PreflightResult]], topology: Topology, backend: str, mode: str, pair: JaxPair
) -> list[str]:
    flat = [(name, step, result) for name, steps in results.items() for step, result in steps.items()]
    if mode == "ops":
        head = f"preflight, operations only, {backend}"
        rows = [[name, step, VERDICTS[one.verdict], f"{one.lower_seconds:.0f} s"] for name, step, one in flat]
        return [head, *table_lines(["member", "step", "verdict", "lowered in"], rows)]
    compiler = f"{backend}, compiled with jax {pair.versions['jax']} and libtpu {pair.versions['libtpu']}"
    head = f"preflight for {topology.name}, {topology.devices} x {topology.memory / GIB:.2f} GiB, {compiler}"
    rows = [preflight_results.cells(*row) for row in flat]
    return [head, *table_lines(preflight_results.COLUMNS, rows), f"({preflight_results.NOTE})"]
