"""Compile StableHLO for an absent TPU with libtpu and return its memory and cost.

libtpu compiles for any TPU on any x86 Linux machine, but incompatible versions of jax and libtpu kill the process: run
this in a child process (preflight/child.py). It uses private names of jax, so pyproject.toml pins both versions.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from competition.preflight.lowering import Unsupported, one_line, operations_in
from competition.preflight.topology import GIB, Topology, devices_of

if TYPE_CHECKING:
    from jax import Device
    from jax.stages import Lowered
    from jaxlib._jax import LoadedExecutable
    from jaxlib.mlir.ir import Operation, WalkResult


@dataclass(frozen=True)
class Compiled:
    """Memory and cost of a compiled program."""

    memory: int  # bytes of HBM per device: arguments, results that do not alias them, temporaries, program
    flops: float  # operations per device and step
    moved: float  # bytes between HBM and the device per step
    compile_seconds: float

    def and_then(self, other: "Compiled", times: int) -> "Compiled":
        """This program, followed by `times` runs of `other`."""
        cost = (self.flops + times * other.flops, self.moved + times * other.moved)
        return Compiled(max(self.memory, other.memory), *cost, self.compile_seconds + other.compile_seconds)


class TooBig(Exception):
    """The program needs more HBM than one device has."""

    def __init__(self, needed: int, message: str) -> None:
        super().__init__(message)
        self.needed = needed  # bytes; 0 = unknown


def compile_program(program: "bytes | Lowered", topology: Topology) -> Compiled:
    """Compile one program of `lowering.programs`.  program: bytes or jax.stages.Lowered.  Raises TooBig, Unsupported."""
    started = time.monotonic()
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
        raise compile_error(str(error)) from None
    cost = cost[0] if isinstance(cost, list) else cost
    parts = (
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        -memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
    )
    return Compiled(
        int(sum(parts)), float(cost.get("flops", 0)), float(cost.get("bytes accessed", 0)), time.monotonic() - started
    )


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


def compile_error(message: str) -> Exception:
    """Turn libtpu's message into TooBig or Unsupported."""
    needed = re.search(r"([\d.]+)([KMG])\)? exceeds available HBM \([\d.]+[KMG]\)", message) or re.search(
        r"Used ([\d.]+)([KMG]) of [\d.]+[KMG] hbm", message
    )
    if needed:
        return TooBig(int(float(needed[1]) * {"K": 2**10, "M": 2**20, "G": GIB}[needed[2]]), one_line(message))
    if "RESOURCE_EXHAUSTED" in message or "CompileTimeHbmOom" in message:
        return TooBig(0, one_line(message))
    return Unsupported(operations_in(message), one_line(message))
