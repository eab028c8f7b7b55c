"""Connect to a Ray cluster, and check its machines before anything is sent to them."""

import ipaddress
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from competition.cluster import node
from competition.cluster.schedule import GIGABYTE, Resources, demand, fits
from competition.config.errors import UserError
from competition.config.params import Needs
from competition.kernels import kernel_script

COUNTED = ("CPU", "GPU", "TPU", "memory")
START = (
    "`ray start --head --node-ip-address=ADDRESS` on one machine and `ray start --address=ADDRESS:6379` on the others, "
    "with the ray of this environment, form one (docs/cluster.md)"
)


@dataclass(frozen=True)
class Machine:
    identity: str  # of Ray
    address: str
    resources: Resources


def connect(address: str) -> Any:
    """Connect to the cluster and return the module `ray`.  address: auto, or HOST:PORT.

    Raises UserError if Ray is not installed or there is no cluster.
    """
    try:
        import ray
    except ImportError:
        raise UserError("CLUSTER= needs Ray, which is not installed; install goldfold[cluster]") from None
    # Of two nodes on one machine, Ray may choose either as the driver's own: with the other one the run would die.
    host = address.rpartition(":")[0]
    own = {"_node_ip_address": host} if host and _is_own(host) else {}
    try:
        ray.init(address, namespace="goldfold", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = (
            " ".join(str(error).split())[:300]
            or "this machine is no node of it, or RAY_AUTH_TOKEN is missing or another one"
        )
        raise UserError(f"CLUSTER={address}: no Ray cluster was reached ({reason}); {START}") from None
    # The machines may have another version of these modules, or none.
    ray.cloudpickle.register_pickle_by_value(node)
    ray.cloudpickle.register_pickle_by_value(kernel_script)
    return ray


def alive_machines(ray: Any) -> list[Machine]:
    """The machines that Ray counts as alive."""
    machines = []
    for entry in ray.nodes():
        if entry["Alive"]:
            resources = {name: float(entry["Resources"].get(name, 0.0)) for name in COUNTED}
            machines.append(Machine(entry["NodeID"], entry["NodeManagerAddress"], resources))
    return machines


def check_addresses(machines: Sequence[Machine], public: bool) -> None:
    """Raise UserError if a machine has a public address, unless cluster.public allows it."""
    addresses = [machine.address for machine in machines if _is_public(machine.address)]
    if addresses and not public:
        raise UserError(
            f"{addresses[0]} is a public address, and whoever reaches Ray's ports runs code on all machines; start Ray with "
            "--node-ip-address on a private network (a VPN, or an SSH tunnel), or set cluster.public: true behind a firewall"
        )


def check_needs(machines: Sequence[Machine], needs: Mapping[str, Needs]) -> None:
    """Raise UserError if no machine has what a member needs: Ray itself would wait for ever.  needs: by member."""
    for member, needed in needs.items():
        if not any(fits(demand(needed, machine.resources), machine.resources) for machine in machines):
            largest = {name: max((machine.resources[name] for machine in machines), default=0.0) for name in COUNTED}
            raise UserError(
                f"no machine of the cluster can take a fold model of {member}, which needs {_described(demand(needed, {}))}; "
                f"the largest of {len(machines)} machines have {_described(largest)}; change cluster.needs or "
                f"cluster.members.{member}, add machines, or let an autoscaler start them (cluster.wait)"
            )


def request_machines(ray: Any, needs: Mapping[str, Needs]) -> None:
    """Ask an autoscaler, if the cluster has one, for machines that these members fit on; with {} for none any more."""
    from ray.autoscaler.sdk import request_resources

    bundles = [{name: count for name, count in demand(n, {}).items() if count} for n in needs.values()]
    request_resources(bundles=[bundle or {"CPU": 1} for bundle in bundles])


def pinned_actor(ray: Any, kind: type, machine: Machine, taken: Resources) -> Any:
    """A Ray actor class that runs on this machine only, once.  taken: the resources that it takes there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_cpus": taken["CPU"], "num_gpus": taken.get("GPU", 0.0)}
    options["resources"] = {"TPU": taken["TPU"]} if taken.get("TPU") else {}
    if taken.get("memory"):
        options["memory"] = taken["memory"]
    strategy = NodeAffinitySchedulingStrategy(machine.identity, soft=False)
    return ray.remote(kind).options(scheduling_strategy=strategy, max_restarts=0, **options)


def _described(resources: Resources) -> str:
    words = [f"{resources[name]:g} {name}" for name in ("CPU", "GPU", "TPU") if resources.get(name)]
    words += [f"{resources['memory'] / GIGABYTE:.1f} GB of memory"] if resources.get("memory") else []
    return ", ".join(words) or "1 CPU or more"


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:  # a host name
        return False


def _is_own(host: str) -> bool:
    """Return True if the address belongs to this machine."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
