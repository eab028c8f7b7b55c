"""Child process of preflight, which libtpu may kill: sends each step's result to its parent when it has it.

libtpu compiles for any TPU on any x86 Linux machine, but incompatible versions of jax and libtpu kill the process. This
uses private names of jax, so pyproject.toml pins both versions.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from competition.config.params import Member
from competition.config.plugins import NO_PLUGINS, load_plugins
from competition.files.child_process import Emit, Event, answer_parent
from competition.preflight.lowering import CannotCompile, Part, Shapes, programs
from competition.preflight.topology import Topology, devices_of, topology_named

if TYPE_CHECKING:
    from jax import Device
    from jax.stages import Lowered
    from jaxlib._jax import LoadedExecutable
    from jaxlib.mlir.ir import Operation, WalkResult


def answer(request: Event, emit: Emit) -> None:
    """Lower and, unless the mode is "ops", compile all requested steps."""
    member = TypeAdapter(Member).validate_json(json.dumps(request["member"]))
    shapes = Shapes(**{**request["shapes"], "views": tuple(request["shapes"]["views"])})
    plugins = load_plugins(Path(request["plugins"])) if request["plugins"] else NO_PLUGINS
    if request["mode"] == "quick":
        import jax

        # Skips most optimizations: a third of the time, approximate memory (docs/preflight.md).
        jax.config.update("jax_optimization_level", "O0")
    topology = None if request["mode"] == "ops" else topology_named(request["topology"])
    steps = programs(request["backend"], member, shapes, request["steps"], topology, plugins)
    for step, parts in steps.items():
        emit("step", step=step, result=step_result(step, parts, topology, lambda text: emit("activity", text=text)))


def step_result(
    step: str, parts: Sequence[Part], topology: Topology | None, report: Callable[[str], None]
) -> dict[str, object]:
    """Lower and compile the programs of a step.

    Returns the verdict (lowers | fits | too_big | unsupported), the sums over the programs and their largest memory; on
    failure the message and the view whose transform failed.
    """
    memory, flops, moved, lowering, compiling = 0, 0.0, 0.0, 0.0, 0.0
    for part in parts:
        name = f"{step}, view {part.view}" if part.view else step
        started = time.monotonic()
        try:
            report(f"{name}: lowering")
            program = part.lower()
            lowering += time.monotonic() - started
            if topology is not None:
                report(f"{name}: compiling")
                started = time.monotonic()
                size, operations, traffic = compile_program(program, topology)
                compiling += time.monotonic() - started
                memory = max(memory, size)
                flops, moved = flops + part.times * operations, moved + part.times * traffic
        except CannotCompile as error:
            return {**error.result, "view": part.view, "lower_seconds": round(lowering, 1)}
    costs = {"memory": memory, "flops": flops, "moved": moved, "compile_seconds": round(compiling, 1)}
    success = {"verdict": "lowers"} if topology is None else {"verdict": "fits", **costs}
    return {"lower_seconds": round(lowering, 1), **success}


def compile_program(program: "bytes | Lowered", topology: Topology) -> tuple[int, float, float]:
    """Compile one program of `lowering.programs`.  program: bytes or jax.stages.Lowered.  Raises CannotCompile.

    Returns the bytes of HBM per device (arguments, results that do not alias them, temporaries, program), the operations
    per device and step, and the bytes between HBM and the device per step.
    """
    try:
        if isinstance(program, bytes):
            executable = _compile_replica(program, devices_of(topology))
            memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
        else:
            from jax._src.interpreters import pxla

            # jax 0.7 compares the layouts of arguments with those of the device, which is absent: that ends the process.
            if hasattr(pxla, "is_default_layout"):
                pxla.is_default_layout = lambda *_: True
            executable = program.compile()
            memory, cost = executable.memory_analysis(), executable.cost_analysis()
    except Exception as error:  # jaxlib raises several types of errors; only the message distinguishes them
        raise CannotCompile(str(error)) from None
    cost = cost[0] if isinstance(cost, list) else cost
    parts = ("argument", "output", "temp", "generated_code")
    size = sum(getattr(memory, f"{part}_size_in_bytes") for part in parts) - memory.alias_size_in_bytes
    return int(size), float(cost.get("flops", 0)), float(cost.get("bytes accessed", 0))


def _compile_replica(program: bytes, devices: "Sequence[Device]") -> "LoadedExecutable":
    """Compile the program of one replica, equal on all devices."""
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jaxlib.mlir import ir

    assignment = np.arange(len(devices)).reshape(-1, 1)
    options = compiler.get_compile_options(num_replicas=len(devices), num_partitions=1, device_assignment=assignment)
    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(program)
        copies = []  # mhlo.copy is the only operation in TensorFlow's programs that is not StableHLO

        def collect(operation: "Operation") -> "WalkResult":
            if operation.operation.name == "mhlo.copy":
                copies.append(operation.operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(collect)
        for copy in copies:
            copy.results[0].replace_all_uses_with(copy.operands[0])
            copy.erase()
        takes_bytes = jax.__version_info__ < (0, 8)
        computation = mlir.module_to_bytecode(module) if takes_bytes else module
        return devices[0].client.compile(computation, _jax.DeviceList(tuple(devices)), options)


if __name__ == "__main__":
    answer_parent(answer, lambda error: {"message": f"{type(error).__name__}: {error}".removeprefix("UserError: ")})
