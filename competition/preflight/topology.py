"""TPU types by name, with memory and published peak rates per device.

A device runs a program and holds a share of the batch: one core of v2 and v3, one chip from v4 on.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from competition.config.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from jax import Device

GIB = 2**30

# Environment for libtpu without a TPU: no waiting for a metadata server, no lock file, no log output.
QUIET = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclass(frozen=True)
class Topology:
    """One TPU type."""

    name: str  # v5e-8
    libtpu: str  # v5e:2x4, as libtpu spells it
    bounds: tuple[int, int, int]  # chips of one host in x, y, z
    devices: int  # replicas of a data-parallel step
    memory: int  # bytes of HBM per device available to a program, as reported by the compiler
    flops: float  # peak bfloat16 operations per second of one device
    bandwidth: float  # bytes per second between HBM and one device
    chip_config: str = ""  # libtpu's name of a non-default chip configuration


def _topology(
    name: str, bounds: tuple[int, int, int], gib: float, tera: float, giga: float, config: str = ""
) -> Topology:
    kind = name.split("-")[0]
    devices = bounds[0] * bounds[1] * bounds[2] * (2 if kind in ("v2", "v3") else 1)
    sides = bounds if kind in ("v4", "v5p") else bounds[:2]  # only these two are three-dimensional
    libtpu = f"{kind}:{'x'.join(map(str, sides))}"
    return Topology(name, libtpu, bounds, devices, int(gib * GIB), tera * 1e12, giga * 1e9, config)


# Peaks: Google's pages on each TPU version (v2 45 and v3 123 Tflop/s, 700 and 900 GB/s per chip, halved here: two
# cores; v4 275 and 1,228; v5e 197 and 819; v5p 459 and 2,765; v6e 918 and 1,640 per chip).
# Memory: as reported by libtpu 0.0.42 for a program that needs too much.
TOPOLOGIES: dict[str, Topology] = {
    t.name: t
    for t in (
        _topology("v2-8", (2, 2, 1), 7.48, 22.5, 350),
        _topology("v3-8", (2, 2, 1), 15.48, 61.5, 450),
        _topology("v4-8", (2, 2, 1), 30.75, 275, 1228, config="megacore"),
        _topology("v5e-1", (1, 1, 1), 15.75, 197, 819),
        _topology("v5e-4", (2, 2, 1), 15.75, 197, 819),
        _topology("v5e-8", (2, 4, 1), 15.75, 197, 819),
        _topology("v5p-8", (2, 2, 1), 95.74, 459, 2765),
        _topology("v6e-1", (1, 1, 1), 31.25, 918, 1640),
        _topology("v6e-4", (2, 2, 1), 31.25, 918, 1640),
        _topology("v6e-8", (2, 4, 1), 31.25, 918, 1640),
    )
}

# Names used by Google and Kaggle for the same machines.
ALIASES = {
    "v5litepod-1": "v5e-1",
    "v5litepod-4": "v5e-4",
    "v5litepod-8": "v5e-8",
    "tpuv5e8": "v5e-8",
    "tpuv38": "v3-8",
    "tpu1vmv38": "v3-8",
    "tpuv6e8": "v6e-8",
    "trillium-8": "v6e-8",
    "v4": "v4-8",
    "v5p": "v5p-8",
}


def topology_named(name: str) -> Topology:
    """Look up a TPU type by name or alias. Raises UserError, with the known names, for any other."""
    plain = name.strip().lower()
    topology = TOPOLOGIES.get(ALIASES.get(plain, plain))
    if topology:
        return topology
    raise UserError(f"TOPOLOGY={name}: unknown{did_you_mean(plain, [*TOPOLOGIES, *ALIASES])}")


def devices_of(topology: Topology) -> "list[Device]":
    """Return jax devices of an absent TPU, to compile for. Needs jax and libtpu; run it in a child process."""
    os.environ.update(QUIET)
    from jax.experimental import topologies

    config = {"chip_config_name": topology.chip_config} if topology.chip_config else {}
    options = {"chips_per_host_bounds": list(topology.bounds), **config}
    return list(topologies.get_topology_desc(topology.libtpu, platform="tpu", **options).devices)
