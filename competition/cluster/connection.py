"""Connect to a Ray cluster, and check its machines before anything is sent to them."""

import ipaddress
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from competition.config.errors import UserError, needed_for
from competition.config.params import Needs

GIGABYTE = 1e9
Resources = dict[str, float]  # Ray's names: CPU, GPU, TPU (chips), memory (bytes)
RESOURCES = ("CPU", "GPU", "TPU", "memory")
CONNECT_SECONDS = 10.0  # for a first connection to HOST:PORT, before Ray tries for minutes
START = (
    "`ray start --head --node-ip-address=ADDRESS` on one machine and `ray start --address=ADDRESS:6379` on the others, "
    "with the ray of this environment, form one (docs/cluster.md)"
)


@dataclass(frozen=True)
class Machine:
    node: str  # Ray's id
    address: str
    resources: Resources  # all, whether free or not


@contextmanager
def connected(address: str, project: Path | None = None) -> Iterator[None]:
    """Be a driver of the cluster inside the block.  address: auto, or HOST:PORT.  project: folder that all tasks start in, if any.

    Raises UserError if Ray is not installed or there is no cluster.
    """
    with needed_for("CLUSTER=", "cluster"):
        import ray
    # Of two nodes on one machine, Ray may choose either as the driver's own: with the other one the command would die.
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"CLUSTER={address}: no Ray cluster was reached ({error}); {START}") from None
    own = {"_node_ip_address": host} if host else {}
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        own = {}
    try:
        ray.init(
            address,
            namespace="goldfold",
            runtime_env={"working_dir": str(project)} if project else {},
            log_to_driver=False,
            logging_level=logging.ERROR,
            **own,
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300] or "this machine is no node of it, or RAY_AUTH_TOKEN is wrong"
        raise UserError(f"CLUSTER={address}: no Ray cluster was reached ({reason}); {START}") from None
    try:
        yield
    finally:
        ray.shutdown()


def alive_machines() -> list[Machine]:
    """The machines that Ray counts as alive."""
    import ray

    return [
        Machine(
            entry["NodeID"],
            entry["NodeManagerAddress"],
            {name: float(entry["Resources"].get(name, 0.0)) for name in RESOURCES},
        )
        for entry in ray.nodes()
        if entry["Alive"]
    ]


def check_addresses(machines: Sequence[Machine], public: bool) -> None:
    """Raise UserError if a machine has a public address, unless cluster.public allows it."""
    addresses = []
    for machine in machines if not public else ():
        with suppress(ValueError):  # a host name
            addresses += [machine.address] if ipaddress.ip_address(machine.address).is_global else []
    if addresses:
        raise UserError(
            f"{addresses[0]} is a public address, and whoever reaches Ray's ports runs code on all machines; start Ray with "
            "--node-ip-address on a private network (a VPN, or an SSH tunnel), or set cluster.public: true behind a firewall"
        )


def check_needs(machines: Sequence[Machine], needs: Mapping[str, Needs]) -> None:
    """Raise UserError if no machine has what a member needs: Ray itself would wait for ever.  needs: by member."""
    for member, needed in needs.items():
        if demand(needed, machines) is None:
            largest = {name: max((machine.resources[name] for machine in machines), default=0.0) for name in RESOURCES}
            texts = []
            for resources in (_stated(needed), largest):
                words = [f"{resources[name]:g} {name}" for name in ("CPU", "GPU", "TPU") if resources[name]]
                words += [f"{resources['memory'] / GIGABYTE:.1f} GB of memory"] if resources["memory"] else []
                texts.append(", ".join(words) or "1 CPU or more")
            raise UserError(
                f"no machine of the cluster can take a fold model of {member}, which needs {texts[0]}; "
                f"the largest of {len(machines)} machines have {texts[1]}; change cluster.needs or "
                f"cluster.members.{member}, or add machines"
            )


def demand(needs: Needs, machines: Sequence[Machine]) -> Resources | None:
    """What a task asks Ray for; None if no machine has it.

    cpus 0: as many as the smallest machine has, so that each machine computes; with gpus or tpu_chips the same share of
    its CPUs as of these. A machine without CPUs (a head that only manages) computes nothing.
    """
    stated = _stated(needs)
    able = [
        machine.resources
        for machine in machines
        if machine.resources["CPU"] > 0 and all(machine.resources[name] >= count for name, count in stated.items())
    ]
    if not able:
        return None
    if not needs.cpus:
        shares = [
            [count / total[name] for name, count in stated.items() if name in ("GPU", "TPU") and count]
            for total in able
        ]
        stated["CPU"] = min(
            total["CPU"] * min(max(share, default=1.0), 1.0) for total, share in zip(able, shares, strict=True)
        )
    return stated


def _stated(needs: Needs) -> Resources:
    memory = needs.memory_gigabytes * GIGABYTE
    return {"CPU": needs.cpus, "GPU": needs.gpus, "TPU": float(needs.tpu_chips), "memory": memory}
