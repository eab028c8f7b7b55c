"""Prepare a machine that joined: it gets the project and the data that it lacks, and says what it finished earlier."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from competition.cluster import node
from competition.cluster.connection import Machine, pinned_actor
from competition.cluster.tasks import Tasks
from competition.cluster.work import Callbacks, Setup, Work

Steps = Generator[list[Any], list[Any], None]  # yields references to Ray's objects, receives their values
Deliver = Callable[[Work, str, bytes], None]


@dataclass
class JoinedMachine:
    """A machine of the cluster in this command."""

    machine: Machine
    actor: Any  # node.Machine there
    steps: Steps | None = None  # of its preparation; None = ready
    awaited: list[Any] = field(default_factory=list)  # references that the next step needs
    info: dict[str, Any] = field(default_factory=dict)  # of node.Machine.set_up
    has_reported: bool = False  # its results of earlier commands are known


class ObjectStore:
    """Bytes in Ray's object store, each put there once."""

    def __init__(self, ray: Any, pack: Callable[[str], tuple[str, bytes]]) -> None:
        """pack: unit -> (sha256, bytes)."""
        self._ray, self._pack = ray, pack
        self._references, self._packed = dict[str, Any](), dict[str, tuple[str, Any]]()

    def reference(self, name: str, read: Callable[[], bytes]) -> Any:
        if name not in self._references:
            self._references[name] = self._ray.put(read())
        return self._references[name]

    def packed_unit(self, unit: str) -> tuple[str, Any]:
        """(sha256, reference to the bytes) of the pack of a unit of this machine."""
        if unit not in self._packed:
            digest, data = self._pack(unit)
            self._packed[unit] = digest, self._ray.put(data)
        return self._packed[unit]


def begin_preparation(
    ray: Any, machine: Machine, setup: Setup, store: ObjectStore, tasks: Tasks, callbacks: Callbacks, deliver: Deliver
) -> JoinedMachine:
    """deliver: gets a result that the machine has from an earlier command."""
    actor = pinned_actor(ray, node.Machine, machine, {"CPU": 0.0}).remote(setup.folder, machine.address)
    joined = JoinedMachine(machine, actor)
    joined.steps = _preparation(joined, setup, store, tasks, callbacks, deliver)
    joined.awaited = next(joined.steps)
    return joined


def _preparation(
    joined: JoinedMachine, setup: Setup, store: ObjectStore, tasks: Tasks, callbacks: Callbacks, deliver: Deliver
) -> Steps:
    actor, address, packages = joined.actor, joined.machine.address, list(setup.packages)
    project = store.reference("project", lambda: setup.project)
    (joined.info,) = yield [actor.set_up.remote(project, setup.digest, packages)]
    callbacks.compare_versions(address, joined.info["versions"])
    yield from _earlier_results(joined, tasks, deliver)
    joined.has_reported = True
    digests = {name: digest for name, (digest, _) in setup.files.items()}
    (missing,) = yield [actor.missing.remote(digests)]
    if missing:
        size = sum(setup.files[name][1].stat().st_size for name in missing)
        callbacks.print_line(f"cluster: {address} receives {len(missing)} files of data ({size / 1e6:,.1f} MB)")
    for name in missing:
        digest, path = setup.files[name]
        yield [actor.receive.remote(name, digest, store.reference(name, path.read_bytes))]


def _earlier_results(joined: JoinedMachine, tasks: Tasks, deliver: Deliver) -> Steps:
    """Fetch what a killed driver left on this machine, and note its checkpoints."""
    unfinished = {work.unit: work for work in tasks.works.values() if work.task in tasks.pending}
    (units,) = yield [joined.actor.results.remote(list(unfinished))]
    for unit, is_complete in units.items():
        work = unfinished[unit]
        if not is_complete:
            tasks.prefer[work.task.name] = joined.machine.identity
        elif work.task in tasks.pending and not work.request.get("force"):
            ((digest, data),) = yield [joined.actor.fetch.remote(unit)]
            if work.task in tasks.pending:
                deliver(work, digest, data)
