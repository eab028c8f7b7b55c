"""TPUs by the names people rent them under, and what is published about one device of each.

A device is what a program runs on and what holds a share of the batch: a core of v2 and v3, a whole chip from v4 on.
"""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from competition.config.errors import UserError

GIB = 2**30

# Without them: minutes of waiting for a metadata server, a lock file of another process, noise.
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
    name: str  # v5e-8
    libtpu: str  # v5e:2x4, as libtpu spells it
    bounds: tuple[int, int, int]  # chips of one host in x, y, z
    devices: int  # replicas of a data-parallel step
    memory: int  # bytes of HBM a program may use on one device; what the compiler itself names as its limit
    flops: float  # peak bfloat16 operations per second of one device
    bandwidth: float  # bytes per second between HBM and one device
    chip_config: str = ""  # libtpu's name of a chip set up otherwise than by default


def _chips(kind: str, bounds: tuple[int, int, int]) -> str:
    # Only v4 and v5p are three-dimensional.
    return f"{kind}:" + "x".join(map(str, bounds if kind in ("v4", "v5p") else bounds[:2]))


def _topology(
    name: str, bounds: tuple[int, int, int], gib: float, tera: float, giga: float, cores: int = 1, config: str = ""
) -> Topology:
    devices = bounds[0] * bounds[1] * bounds[2] * cores
    kind = name.split("-")[0]
    return Topology(name, _chips(kind, bounds), bounds, devices, int(gib * GIB), tera * 1e12, giga * 1e9, config)


# Peaks: Google's pages on each TPU version (v2 45 and v3 123 Tflop/s, 700 and 900 GB/s per chip, halved here: two
# cores; v4 275 and 1,228; v5e 197 and 819; v5p 459 and 2,765; v6e 918 and 1,640 per chip).
# Memory: what libtpu 0.0.42 says is available when a program asks for too much.
TOPOLOGIES: dict[str, Topology] = {
    t.name: t
    for t in (
        _topology("v2-8", (2, 2, 1), 7.48, 22.5, 350, cores=2),
        _topology("v3-8", (2, 2, 1), 15.48, 61.5, 450, cores=2),
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

# The same machine under other names: Google's, Kaggle's.
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
    """Raises UserError, with the known names, for any other."""
    plain = name.strip().lower()
    found = TOPOLOGIES.get(ALIASES.get(plain, plain))
    if found:
        return found
    near = get_close_matches(plain, [*TOPOLOGIES, *ALIASES], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"TOPOLOGY={name}: unknown; {hint}known are {', '.join(TOPOLOGIES)}")


def devices_of(topology: Topology) -> list[Any]:
    """jax devices of a TPU that is not here, to compile for; needs jax and libtpu, and a process of its own."""
    os.environ.update(QUIET)
    from jax.experimental import topologies

    options: dict[str, Any] = {"chips_per_host_bounds": list(topology.bounds)}
    if topology.chip_config:
        options["chip_config_name"] = topology.chip_config
    return list(topologies.get_topology_desc(topology.libtpu, platform="tpu", **options).devices)


def roofline_seconds(topology: Topology, flops: float, moved: float) -> float:
    """The least time one device needs for `flops` operations and `moved` bytes to and from HBM (Williams et al. 2009).

    An estimate from published peaks, never reached: it bounds the time from below.
    """
    return max(flops / topology.flops, moved / topology.bandwidth)
