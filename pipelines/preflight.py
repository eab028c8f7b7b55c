"""Would the members run on that TPU? Their real steps, compiled for it where none is: memory, speed, remedies."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.artifacts.dependencies import member_with_tuned_values
from competition.artifacts.manifest import write_json
from competition.config.errors import UserError
from competition.config.yaml_text import line_of, read_text, read_yaml
from competition.preflight import results as foreseen
from competition.preflight.answers import (
    GRAIN,
    PreflightRequest,
    PreflightResult,
    installed,
    largest_batch,
    require_compiler,
    run_preflight,
)
from competition.preflight.planning import sizes_of
from competition.preflight.results import STEPS, VERDICTS
from competition.preflight.topology import GIB, Topology, topology_named
from competition.training.device import TPU_FILES, TPU_SIGNS
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path, selected_members
from pipelines.versions import is_installed


def run(job: Job) -> None:
    """params.yaml -> work/<competition>/preflight/<topology>.json, and a table on the screen"""
    options = job.options
    if options.if_tpu and (not tpu_is_here() or is_installed("tensorflow-tpu")):
        return  # TensorFlow's TPU wheel cannot lower for a CPU; its own first step says the same
    topology, backend = topology_named(options.topology), backend_of(job)
    require_compiler(options.mode, backend)
    steps = [options.step] if options.step else list(STEPS)
    answers: dict[str, dict[str, PreflightResult]] = {}
    for name in selected_members(job):
        question = question_of(job, name, topology, backend)
        answers[name] = answered(job, name, question, steps)
        told = ", ".join(f"{step} {VERDICTS[answer.verdict]}" for step, answer in answers[name].items())
        job.echo(f"preflight {name}: {told}")
        if options.search and answers[name].get("train"):
            answers[name]["train_largest"] = searched(job, name, question, answers[name]["train"])
    changes = [change for name in answers for change in what_to_change(job, name, answers[name], topology)]
    file = job.path("preflight", "ops.json" if options.mode == "ops" else f"{topology.name}.json")
    facts = {"topology": topology.name, "backend": backend, "mode": options.mode, "devices": topology.devices}
    write_json(file, {**facts, "members": answers, "changes": changes})
    for line in [*table(answers, topology, backend, options.mode), *changes]:
        job.echo(line)
    job.echo(f"preflight: {display_path(file)} holds it all")
    bad = sum(not answer.good for found in answers.values() for answer in found.values())
    if bad:
        total = sum(map(len, answers.values()))
        raise UserError(f"{bad} of {total} steps would not run on {topology.name}; the lines above say what to change")


def question_of(job: Job, name: str, topology: Topology, backend: str) -> PreflightRequest:
    member, _ = member_with_tuned_values(job.work, job.params, name, job.overrides)
    classes = job.options.classes or sizes_of(job.path("data"), job.params).classes
    return foreseen.question_of(member, job.params, topology, backend, classes, job.options.mode)


def answered(job: Job, name: str, question: PreflightRequest, steps: Sequence[str]) -> dict[str, PreflightResult]:
    with progress_bar(None, f"preflight {name}") as bar:

        def say(what: str, seconds: int) -> None:
            bar.set_postfix_str(f"{what}, {seconds} s", refresh=False)
            bar.update(0)
            bar.refresh()

        return run_preflight(
            question, steps, job.path("preflight", "answers"), say, job.options.limit, job.options.force
        )


def searched(job: Job, name: str, question: PreflightRequest, first: PreflightResult) -> PreflightResult:
    """The training step at the largest batch that fits; `first` when none does, or when size is not the matter."""

    def asked(batch: int) -> PreflightResult:
        if batch == first.batch and first.mode == "compile":
            return first
        wanted = replace(question, shapes=replace(question.shapes, batch=batch), mode="compile")
        return answered(job, name, wanted, ["train"])["train"]

    return largest_batch(asked, question.shapes.replicas, first.batch, job.options.most) or first


def what_to_change(job: Job, name: str, found: dict[str, PreflightResult], topology: Topology) -> list[str]:
    """For every step that would not run: the line of the parameters to change, and what to write there."""
    lines = []
    for step in STEPS:
        answer = found.get(step)
        if answer is None or answer.good:
            continue
        keys: Sequence[Any] = ("members", name, "architecture")
        what = f"{', '.join(answer.operations) or 'an operation'} has no form there"
        if answer.verdict == "too_big":
            keys = batch_key(job.options.params, name) if step == "train" else ("predict", "batch")
            share = f"{answer.memory / answer.limit:.1f} times what is there" if answer.memory else "more than is there"
            what = f"needs {share}; " + advice(answer, found.get("train_largest"), topology)
        elif answer.verdict == "unsupported" and answer.view:
            keys = ("predict", "views", job.params.predict.views.index(answer.view))
        elif answer.verdict == "crashed":
            what = answer.message
        lines.append(f"{name} {step}: {what}: {answer.remedy} ({said_at(job.options.params, keys)})")
    return lines


def advice(answer: PreflightResult, largest: PreflightResult | None, topology: Topology) -> str:
    if largest is not None and largest.good:
        return f"a batch of {largest.batch} is the largest that fits"
    about = int(answer.batch * answer.limit / answer.memory) if answer.memory else 0
    unit = topology.devices * GRAIN if about >= topology.devices * GRAIN else topology.devices
    about = about // unit * unit
    return f"about {about} images would fit (SEARCH=1 finds out)" if about else "perhaps not one image fits"


def batch_key(params: Path, name: str) -> Sequence[str]:
    """Where this member's training batch is said: with the member, or for all."""
    own = ("members", name, "train", "batch")
    return own if line_of(read_text(params), own)[0] == len(own) else ("train", "batch")


def said_at(params: Path, keys: Sequence[Any]) -> str:
    """'flowers.yaml line 22: train.batch', in the recipe or in the file it extends."""
    base = read_yaml(params).get("extends")
    files = [params, params.parent / base] if isinstance(base, str) else [params]
    _, line, file = max(((*line_of(read_text(file), keys), file) for file in files), key=lambda found: found[0])
    return f"{file.name} line {line}: {'.'.join(map(str, keys))}"


def table(answers: dict[str, dict[str, PreflightResult]], topology: Topology, backend: str, mode: str) -> list[str]:
    if mode == "ops":
        head = f"preflight, operations only, {backend}"
        rows = [
            [*foreseen.cells(*row)[:2], VERDICTS[row[2].verdict], f"{row[2].lower_seconds:.0f} s"]
            for row in flat(answers)
        ]
        return [head, *aligned([["member", "step", "verdict", "lowered in"], *rows])]
    head = f"preflight for {topology.name}, {topology.devices} x {topology.memory / GIB:.2f} GiB, {backend}"
    rows = [foreseen.cells(*row) for row in flat(answers)]
    return [head, *aligned([list(foreseen.COLUMNS), *rows]), f"({foreseen.NOTE})"]


def flat(answers: dict[str, dict[str, PreflightResult]]) -> list[tuple[str, str, PreflightResult]]:
    return [(name, step, answer) for name, found in answers.items() for step, answer in found.items()]


def aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def backend_of(job: Job) -> str:
    """The one asked for; on "auto" JAX, which is what today's TPU images give the TPU to."""
    wanted = job.options.backend or job.params.device.backend
    if wanted != "auto":
        return str(wanted)
    return "jax" if job.options.mode != "ops" or installed("jax") else "tensorflow"


def tpu_is_here() -> bool:
    return any(Path(path).exists() for path in TPU_FILES) or any(sign in os.environ for sign in TPU_SIGNS)


if __name__ == "__main__":
    main("preflight")
