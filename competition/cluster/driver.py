"""Run tasks on a Ray cluster: every task is done exactly once, whichever machines come and go.

The driver alone decides and keeps all results. A task is given to one slot; it is given to another one only when Ray
has declared the first one dead, or when it reported its failure.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from competition.cluster import connection, node
from competition.cluster.connection import Machine
from competition.cluster.schedule import Cluster, Open, Slot, Start, Task, decide
from competition.cluster.simulation import finish_seconds
from competition.config.errors import UserError
from competition.config.params import Needs

LOOK_SECONDS = 3.0  # between two looks at the list of machines
POLL_SECONDS = 1.0  # that a machine waits for an event before it answers
ESTIMATE_SECONDS = 5.0  # between two estimates of the time left
REPORT_SECONDS = 30.0  # that the first task waits for machines to report
STOP_SECONDS = 60.0  # for the checkpoints after Ctrl-C
# Errors of a machine, which another one may not have. Anything else in Python would fail there too.
OF_THE_MACHINE = (
    "OSError",
    "MemoryError",
    "UnavailableError",
    "ResourceExhaustedError",
    "XlaRuntimeError",
    "JaxRuntimeError",
)
Values = Generator[list[Any], list[Any], None]  # yields references, receives their values


@dataclass(frozen=True)
class Work:
    """A task with all that a machine needs for it."""

    task: Task
    unit: str  # folder of its result, relative to work/
    request: Mapping[str, Any]  # for the computing process
    inputs: tuple[str, ...] = ()  # units that it reads


@dataclass(frozen=True)
class Setup:
    """What every machine gets, and how slots are started."""

    project: bytes  # zip of the source and the parameters
    digest: str  # sha256 of it
    files: Mapping[str, tuple[str, Path]]  # data that travel through Ray: path below work/ -> sha256, local file
    packages: tuple[str, ...]  # whose versions are compared
    folder: str  # cluster.folder
    command: tuple[str, ...]  # of the computing process, after `python`
    settings: Mapping[str, Any]  # for the computing process
    needs: Mapping[str, Needs]  # by member
    retries: int
    wait: float  # seconds without any machine for what is left


@dataclass(frozen=True)
class Home:
    """What the driver calls on its own machine."""

    pack: Callable[[str], tuple[str, bytes]]  # unit -> its pack, for `inputs`
    deliver: Callable[[Work, str, bytes], None]  # a result came, with its digest
    say: Callable[[str], None]
    show: Callable[["Status"], None]
    versions: Callable[[str, Mapping[str, str]], None]  # address, versions of the packages there


@dataclass(frozen=True)
class Row:
    machine: str
    task: str
    text: str
    share: float  # done, 0 to 1


@dataclass(frozen=True)
class Status:
    done: int
    total: int
    rows: Sequence[Row]
    seconds_left: float


@dataclass
class _Node:
    machine: Machine
    actor: Any
    steps: Values | None  # of its set-up; None = ready
    waiting: list[Any]
    info: dict[str, Any] = field(default_factory=dict)
    has_reported: bool = False  # its results of earlier commands are known


@dataclass
class _Slot:
    slot: Slot
    node: _Node
    actor: Any
    poll: Any = None  # reference to the next events
    seen: int = 0  # number of the last event
    started: float = 0.0
    text: str = "starting"
    share: float = 0.0
    warm: bool = False
    stopping: bool = False


def run_works(ray: Any, setup: Setup, works: Sequence[Work], home: Home, public: bool) -> None:
    """Run all tasks. Raises UserError, at the end, if some failed.

    Ctrl-C asks the machines for checkpoints and ends their processes.
    """
    driver = _Driver(ray, setup, works, home, public)
    try:
        driver.run()
    except KeyboardInterrupt:
        driver.stop()
        raise
    except ray.exceptions.LocalRayletDiedError:
        raise UserError(
            "Ray has ended on this machine; start it again and run the same command: it asks for what is missing"
        ) from None
    finally:
        driver.close()


class _Driver:
    def __init__(self, ray: Any, setup: Setup, works: Sequence[Work], home: Home, public: bool) -> None:
        self._ray, self._setup, self._home, self._public = ray, setup, home, public
        self._works = {work.task.name: work for work in works}
        self._pending = [work.task for work in works]
        self._done: set[str] = set()
        self._failed: dict[str, str] = {}  # task -> sentence
        self._losses: dict[str, int] = {}  # task -> how often its machine or process was lost
        self._crashed: set[tuple[str, str]] = set()  # (task, machine)
        self._avoid: set[tuple[str, str]] = set()  # those that crashed twice
        self._prefer: dict[str, str] = {}
        self._nodes: dict[str, _Node] = {}
        self._slots: dict[int, _Slot] = {}
        self._refs: dict[str, Any] = {}  # file or unit -> its bytes in Ray's store
        self._seconds: dict[str, list[float]] = {}  # member -> measured seconds of its tasks
        self._numbers = iter(range(1, 1_000_000))
        self._looked = self._usable_since = self._estimated = -1e9
        self._estimate = 0.0  # seconds left
        self._report_until = time.monotonic() + REPORT_SECONDS

    def run(self) -> None:
        self._usable_since = time.monotonic()
        while self._pending or any(slot.slot.task for slot in self._slots.values()):
            self._look()
            self._dispatch()
            self._collect()
            self._check_wait()
            self._home.show(self._status())
        if self._failed:
            name, sentence = next(iter(self._failed.items()))
            others = f"; {len(self._failed) - 1} more failed" if len(self._failed) > 1 else ""
            raise UserError(f"{name}: {sentence}{others}; everything else is done, the same command tries again")

    def stop(self) -> None:
        """Ask for checkpoints of what runs, and wait for them."""
        busy = [slot for slot in self._slots.values() if slot.slot.task]
        if busy:
            self._home.say(f"cluster: stopping; {len(busy)} fold models write their checkpoints")
        for slot in busy:
            slot.stopping = True
            slot.actor.stop.remote()
        end = time.monotonic() + STOP_SECONDS
        self._pending = []
        while any(slot.slot.task for slot in self._slots.values()) and time.monotonic() < end:
            self._collect()

    def close(self) -> None:
        for slot in list(self._slots.values()):
            self._close(slot)
        for one in self._nodes.values():
            self._kill(one.actor)

    # Machines

    def _look(self) -> None:
        """Set up machines that came, give up those that went."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        alive = {machine.identity: machine for machine in connection.machines(self._ray)}
        for identity, machine in alive.items():
            if identity not in self._nodes and machine.resources["CPU"] > 0:
                connection.check_addresses([machine], self._public)
                self._add(machine)
        for identity in self._nodes.keys() - alive.keys():
            self._lose(self._nodes[identity])

    def _add(self, machine: Machine) -> None:
        actor = self._remote(node.Machine, machine, 0, {}).remote(self._setup.folder, machine.address)
        self._nodes[machine.identity] = one = _Node(machine, actor, None, [])
        one.steps = self._set_up(one)
        one.waiting = next(one.steps)

    def _set_up(self, one: _Node) -> Values:
        """The set-up of a machine: project, missing data, results of an earlier command."""
        setup, actor, address = self._setup, one.actor, one.machine.address
        packages = list(setup.packages)
        (one.info,) = yield [actor.set_up.remote(self._stored("project", setup.project), setup.digest, packages)]
        self._home.versions(address, one.info["versions"])
        yield from self._bring_home(one)
        one.has_reported = True
        digests = {name: digest for name, (digest, _) in setup.files.items()}
        (missing,) = yield [actor.missing.remote(digests)]
        if missing:
            size = sum(setup.files[name][1].stat().st_size for name in missing)
            self._home.say(f"cluster: {address} receives {len(missing)} files of data ({size / 1e6:,.1f} MB)")
        for name in missing:
            digest, path = setup.files[name]
            yield [actor.receive.remote(name, digest, self._stored(name, path.read_bytes))]

    def _bring_home(self, one: _Node) -> Values:
        """Fetch what a killed driver left on this machine, and note its checkpoints."""
        unfinished = {work.unit: work for work in self._works.values() if work.task in self._pending}
        (found,) = yield [one.actor.results.remote(list(unfinished))]
        for unit, is_complete in found.items():
            work = unfinished[unit]
            if not is_complete:
                self._prefer[work.task.name] = one.machine.identity
            elif work.task in self._pending and not work.request.get("force"):
                ((digest, data),) = yield [one.actor.fetch.remote(unit)]
                if work.task in self._pending:
                    self._pending.remove(work.task)
                    self._deliver(work, digest, data)

    def _lose(self, one: _Node) -> None:
        """Give the tasks of a machine that is gone to others."""
        address, identity = one.machine.address, one.machine.identity
        if self._nodes.pop(identity, None) is None:
            return
        if not any(slot.node is one for slot in self._slots.values()):
            self._home.say(f"cluster: {address} is gone")
        for slot in [slot for slot in self._slots.values() if slot.node is one]:
            self._return_task(slot, f"{address} is gone")
            self._drop(slot)
        self._prefer = {task: machine for task, machine in self._prefer.items() if machine != identity}

    # Slots

    def _dispatch(self) -> None:
        """Start all tasks that can run now, once all machines have said what they finished for an earlier command."""
        if not all(one.has_reported for one in self._nodes.values()) and time.monotonic() < self._report_until:
            return
        while step := decide(self._cluster(), [self._expected(task) for task in self._pending], self._done):
            slot = self._slots[step.slot.number] if isinstance(step, Start) else self._open(step)
            self._start(slot, step.task)

    def _cluster(self) -> Cluster:
        machines = {name: one.machine.resources for name, one in self._nodes.items() if one.steps is None}
        slots = [replace(slot.slot, seconds=slot.slot.seconds * (1 - slot.share)) for slot in self._slots.values()]
        return Cluster(machines, slots, self._setup.needs, prefer=self._prefer, avoid=self._avoid)

    def _open(self, step: Open) -> _Slot:
        for closing in step.closing:
            self._close(self._slots[closing.number])
        one, number = self._nodes[step.machine], next(self._numbers)
        slot = Slot(number, step.machine, step.task.member, step.taken)
        resources = {name: count for name, count in step.taken.items() if name == "TPU" and count}
        make = self._remote(node.Worker, one.machine, step.taken["CPU"], resources, step.taken)
        log = f"{one.info['root']}/logs/{step.task.member}-{number}.log"
        settings = {**self._setup.settings, "root": one.info["root"], "project": one.info["project"]}
        settings |= {"member": step.task.member, "gpus": step.taken["GPU"]}
        self._slots[number] = _Slot(slot, one, make.remote(list(self._setup.command), settings, log))
        return self._slots[number]

    def _start(self, slot: _Slot, task: Task) -> None:
        work = self._works[task.name]
        self._pending.remove(work.task)
        slot.slot = replace(slot.slot, task=task.name, seconds=task.seconds)
        slot.started, slot.share, slot.text = time.monotonic(), 0.0, "starts" if not slot.warm else ""
        for unit in work.inputs:
            digest, data = self._packed(unit)
            slot.actor.install.remote(unit, digest, data)
        slot.actor.start.remote(dict(work.request))
        if slot.poll is None:
            self._ask(slot)

    def _ask(self, slot: _Slot) -> None:
        slot.poll = slot.actor.events.remote(slot.seen, POLL_SECONDS)

    def _collect(self) -> None:
        """Wait for the next answers of the machines and act on them."""
        polls = {slot.poll: slot for slot in self._slots.values() if slot.poll is not None}
        setups = {ref: one for one in self._nodes.values() for ref in one.waiting}
        refs = [*polls, *setups]
        if not refs:
            time.sleep(POLL_SECONDS)
            return
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=POLL_SECONDS)
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0) if ready else ([], refs)
        for ref in ready:
            if ref in polls and polls[ref].slot.number in self._slots:
                self._read(polls[ref])
            elif ref in setups:
                self._advance(setups[ref])

    def _advance(self, one: _Node) -> None:
        """Take the next step of a machine's set-up once all it waits for is there."""
        if one.steps is None or one.machine.identity not in self._nodes:
            return
        ready, _ = self._ray.wait(one.waiting, num_returns=len(one.waiting), timeout=0)
        if len(ready) < len(one.waiting):
            return
        try:
            one.waiting = one.steps.send(self._ray.get(one.waiting))
        except StopIteration:
            one.steps, one.waiting = None, []
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ActorUnschedulableError):
            self._lose(one)
        except self._ray.exceptions.RayTaskError as error:
            raise UserError(f"{one.machine.address} could not be prepared: {_line(error)}") from None

    def _read(self, slot: _Slot) -> None:
        errors = self._ray.exceptions
        try:
            events = self._ray.get(slot.poll)
        except errors.ActorUnavailableError:
            self._ask(slot)  # the connection may come back; only a death frees the task
            return
        except (errors.RayActorError, errors.ActorUnschedulableError):
            self._lose_slot(slot)
            return
        except errors.RayTaskError as error:
            self._return_task(slot, f"{slot.node.machine.address}: {_line(error)}")
            self._close(slot)
            return
        for event in events:
            slot.seen = event["number"]
            self._act(slot, event)
        if slot.slot.number in self._slots:
            slot.poll = None
            if slot.slot.task:
                self._ask(slot)

    def _lose_slot(self, slot: _Slot) -> None:
        """Give up a slot that Ray has declared dead, and its machine if that is dead too."""
        one = slot.node
        if one.machine.identity in {machine.identity for machine in connection.machines(self._ray)}:
            self._return_task(slot, f"Ray's process for {slot.slot.member} on {one.machine.address} has ended")
            self._drop(slot)
        else:
            self._lose(one)

    def _act(self, slot: _Slot, event: Mapping[str, Any]) -> None:
        name, kind = slot.slot.task, event["event"]
        if kind == "say":
            self._home.say(f"cluster: {slot.node.machine.address}: {event['text']}")
        elif kind == "progress":
            slot.text, slot.share = event["text"], event["step"] / max(event["steps"], 1)
        elif kind == "done" and name:
            self._seconds.setdefault(slot.slot.member, []).append(event["seconds"])
            slot.warm, slot.slot = True, replace(slot.slot, task="")
            self._deliver(self._works[name], event["digest"], event["pack"])
        elif kind == "failed" and name:
            if set(event["kinds"]) & set(OF_THE_MACHINE):
                self._return_task(slot, f"{slot.node.machine.address}: {event['message']}", on_machine=True)
            else:
                self._fail(name, event["message"])
            slot.slot = replace(slot.slot, task="")
        elif kind == "ended":
            slot.warm = False
            if name:
                code, lines = event["code"], "; ".join(event["lines"])
                reason = f"the process on {slot.node.machine.address} ended with code {code} ({lines}; {event['log']})"
                self._return_task(slot, reason, on_machine=True)

    def _return_task(self, slot: _Slot, reason: str, on_machine: bool = False) -> None:
        """Let another slot run the task of this one, unless that was done too often.

        on_machine: the machine is still there. It has the checkpoint and gets the task again, but not a third time.
        """
        name = slot.slot.task
        slot.slot = replace(slot.slot, task="")
        if not name or slot.stopping:
            return
        self._losses[name] = losses = self._losses.get(name, 0) + 1
        place = (name, slot.slot.machine)
        if place in self._crashed:
            self._avoid.add(place)
        if on_machine:
            self._crashed.add(place)
            self._prefer[name] = slot.slot.machine
        if losses > self._setup.retries:
            self._fail(name, f"started {losses} times without a result, most recently: {reason}")
            return
        resumes = on_machine or self._setup.settings.get("checkpoints")
        how = "from its last checkpoint" if resumes else "from its beginning: cluster.shared would keep checkpoints"
        self._home.say(
            f"cluster: {reason}; {name} is started again {how} (try {losses + 1} of {self._setup.retries + 1})"
        )
        self._pending.insert(0, self._works[name].task)

    def _fail(self, name: str, sentence: str) -> None:
        """Give a task up, with those that depend on it."""
        self._failed[name] = sentence
        self._home.say(f"cluster: {name} failed: {sentence}")
        for task in [task for task in self._pending if name in task.after]:
            self._pending.remove(task)
            self._fail(task.name, f"it needs {name}, which failed")

    def _deliver(self, work: Work, digest: str, data: bytes) -> None:
        self._home.deliver(work, digest, data)
        self._done.add(work.task.name)
        self._prefer.pop(work.task.name, None)
        for one in self._nodes.values():  # an earlier try may have left checkpoints on another machine
            one.actor.remove.remote(work.unit)

    # Processes and files

    def _remote(
        self,
        kind: type,
        machine: Machine,
        cpus: float,
        resources: dict[str, float],
        taken: Mapping[str, float] | None = None,
    ) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": (taken or {}).get("GPU", 0.0), "resources": resources}
        if memory := (taken or {}).get("memory"):
            options["memory"] = memory
        strategy = NodeAffinitySchedulingStrategy(machine.identity, soft=False)
        return self._ray.remote(kind).options(scheduling_strategy=strategy, max_restarts=0, **options)

    def _stored(self, name: str, data: bytes | Callable[[], bytes]) -> Any:
        """Reference to bytes in Ray's store, put there once."""
        if name not in self._refs:
            self._refs[name] = self._ray.put(data() if callable(data) else data)
        return self._refs[name]

    def _packed(self, unit: str) -> tuple[str, Any]:
        if unit not in self._refs:
            digest, data = self._home.pack(unit)
            self._refs[unit] = (digest, self._ray.put(data))
        digest, reference = self._refs[unit]
        return digest, reference

    def _close(self, slot: _Slot) -> None:
        self._kill(slot.actor)
        self._drop(slot)

    def _drop(self, slot: _Slot) -> None:
        self._slots.pop(slot.slot.number, None)

    def _kill(self, actor: Any) -> None:
        self._ray.kill(actor)  # no error if it is dead

    # Waiting and progress

    def _check_wait(self) -> None:
        """Raise UserError if for cluster.wait seconds no machine could take anything that is left."""
        if any(slot.slot.task for slot in self._slots.values()) or any(one.steps for one in self._nodes.values()):
            self._usable_since = time.monotonic()
        elif not self._pending:
            return
        elif time.monotonic() - self._usable_since > max(self._setup.wait, 2 * LOOK_SECONDS):
            names = ", ".join(task.name for task in self._pending[:3])
            raise UserError(
                f"no machine of the cluster can take {names}; start machines and run the same command: it asks for what "
                "is missing (cluster.wait is how long it waits for them)"
            )

    def _status(self) -> Status:
        busy = [slot for slot in self._slots.values() if slot.slot.task]
        rows = [Row(slot.node.machine.address, slot.slot.task, slot.text, slot.share) for slot in busy]
        if time.monotonic() - self._estimated > ESTIMATE_SECONDS:
            self._estimated, self._estimate = time.monotonic(), self._seconds_left(busy)
        return Status(len(self._done), len(self._works), rows, self._estimate)

    def _seconds_left(self, busy: Sequence[_Slot]) -> float:
        cluster = self._cluster()
        running = {
            slot.slot.number: self._expected(self._works[slot.slot.task].task).seconds * (1 - slot.share)
            for slot in busy
        }
        pending = [self._expected(task) for task in self._pending]
        return finish_seconds(cluster, pending, running, self._done)

    def _expected(self, task: Task) -> Task:
        """The task with the mean of the seconds measured in this command, where there are any."""
        measured = self._seconds.get(task.member)
        return replace(task, seconds=sum(measured) / len(measured)) if measured else task


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[-300:]
