"""StableHLO -> an executable for a TPU that is not here, by libtpu; only its memory and its cost are wanted of it.

libtpu compiles for any TPU on any x86 Linux machine, but a wrong pair of jax and libtpu ends the process: call this in
a process of its own (preflight_child). It uses names that jax does not promise to keep: pyproject.toml pins the pair.
"""

import re
import time
from dataclasses import dataclass
from typing import Any

from competition.preflight.lowering import Unsupported, one_line, operations_in
from competition.preflight.topology import GIB, Topology, devices_of


@dataclass(frozen=True)
class Compiled:
    memory: int  # bytes of HBM of one device: arguments, results that are no arguments, temporaries, the program
    flops: float  # operations of one step on one device
    moved: float  # bytes between HBM and one device in one step
    seconds: float  # of compiling

    def and_then(self, other: "Compiled", times: int) -> "Compiled":
        """Both, one behind the other, the other `times` times."""
        work = (self.flops + times * other.flops, self.moved + times * other.moved)
        return Compiled(max(self.memory, other.memory), *work, self.seconds + other.seconds)


class TooBig(Exception):
    """The program needs more HBM than one device has."""

    def __init__(self, needed: int, limit: int, message: str) -> None:
        super().__init__(message)
        self.needed, self.limit = needed, limit


def compile_program(program: Any, topology: Topology) -> Compiled:
    """program: what lowering.programs made, bytes or Lowered. Raises TooBig, Unsupported."""
    started = time.monotonic()
    try:
        if isinstance(program, bytes):
            executable = _compile_replica(program, devices_of(topology))
            memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
        else:
            executable = program.compile()
            memory, cost = executable.memory_analysis(), executable.cost_analysis()
    except Exception as error:  # jaxlib raises errors of several kinds; the message tells them apart
        raise refused(str(error)) from None
    return facts(memory, cost, time.monotonic() - started)


def _compile_replica(program: bytes, devices: list[Any]) -> Any:
    """One replica's program, the same for every device."""
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
        _without_copies(module, ir)
        return devices[0].client.compile(module, _jax.DeviceList(tuple(devices)), options)


def facts(memory: Any, cost: Any, seconds: float) -> Compiled:
    """memory: CompiledMemoryStats.  cost: cost_analysis(), a dictionary or a list of one."""
    cost = cost[0] if isinstance(cost, list) else cost
    parts = (
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        -memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
    )
    return Compiled(int(sum(parts)), float(cost.get("flops", 0)), float(cost.get("bytes accessed", 0)), seconds)


def refused(message: str) -> Exception:
    """What libtpu's message means."""
    numbers = re.search(r"\(?([\d.]+)([KMG])\)? exceeds available HBM \(([\d.]+)([KMG])\)", message) or re.search(
        r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm", message
    )
    if numbers:
        unit = {"K": 2**10, "M": 2**20, "G": GIB}
        needed, limit = (int(float(numbers[n]) * unit[numbers[n + 1]]) for n in (1, 3))
        return TooBig(needed, limit, one_line(message))
    if "RESOURCE_EXHAUSTED" in message or "CompileTimeHbmOom" in message:
        return TooBig(0, 0, one_line(message))
    return Unsupported(operations_in(message), one_line(message))


def _without_copies(module: Any, ir: Any) -> None:
    """TensorFlow marks some values with mhlo.copy, the one operation in its programs that is not StableHLO."""
    copies = []

    def look(operation: Any) -> Any:
        if operation.operation.name == "mhlo.copy":
            copies.append(operation.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
