"""Run tasks on a Ray cluster: each result comes home exactly once, whichever machines come and go.

Ray decides where a task runs, starts it again when its machine or process was lost (cluster.retries), and gives the results of
teachers to the tasks of their students.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty
from typing import TYPE_CHECKING, Any

from competition.cluster.connection import (
    alive_machines,
    check_addresses,
    check_needs,
    demand,
)
from competition.cluster.node import (
    STOP_SECONDS,
    Event,
    MachineError,
    Result,
    Setup,
    TaskError,
    TaskRequest,
    compute,
)
from competition.config.errors import UserError, counted
from competition.config.params import ClusterParams

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.queue import Queue

LOOK_SECONDS = 3.0  # between two looks at the list of machines
REMOVAL_SECONDS = 30.0  # for the folders of finished tasks
LOST_SECONDS = 60.0  # that the command waits for a machine that can take what is left


@dataclass(frozen=True)
class Status:
    """For the screen."""

    done: int
    running: Mapping[str, str]  # task -> address of its machine
    latest: str  # progress of one of them


@dataclass(frozen=True)
class Callbacks:
    """What the driver calls in its own process."""

    archive: Callable[[str], bytes]  # of a result folder of this machine, for the inputs of a task
    deliver: Callable[[TaskRequest, bytes], None]  # the archive of a result came
    print_line: Callable[[str], None]
    show: Callable[[Status], None]
    compare_versions: Callable[[str, Mapping[str, str]], None]  # address, versions of the packages there


def run_tasks(requests: Sequence[TaskRequest], setup: Setup, cluster: ClusterParams, callbacks: Callbacks) -> None:
    """Run all tasks, a teacher's before its student's. Raises UserError, at the end, if some failed.

    Ctrl-C asks the processes for their checkpoints and ends them. An error of a callback ends this function; Ray ends the
    processes when the command disconnects.
    """
    import ray
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    needs = {request.member: cluster.members.get(request.member, cluster.needs) for request in requests}
    tasks = _Tasks(callbacks, cluster.retries)
    try:
        machines = alive_machines()
        check_addresses(machines, cluster.public)
        check_needs(machines, needs)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        events = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        options: dict[str, dict[str, Any]] = {}  # Ray's, by member
        for name, needed in needs.items():
            taken = demand(needed, machines)
            assert taken is not None  # check_needs
            options[name] = {
                "num_cpus": taken["CPU"],
                "num_gpus": taken["GPU"],
                "resources": {"TPU": taken["TPU"]} if taken["TPU"] else {},
                "memory": taken["memory"] or None,
                "max_retries": cluster.retries,
                "retry_exceptions": [MachineError],
                "scheduling_strategy": "SPREAD",
            }
        submit(requests, setup, events, options, tasks)
        looked = usable = time.monotonic()
        while tasks.waiting:
            ready, _ = ray.wait([*tasks.waiting], num_returns=1, timeout=1.0)
            tasks.read(events)
            for reference in ready:
                tasks.finish(reference)
            if time.monotonic() - looked > LOOK_SECONDS:
                looked, machines = time.monotonic(), alive_machines()
                check_addresses(machines, cluster.public)
                left = {request.member for request in tasks.waiting.values()}
                if any(demand(needs[name], machines) for name in left):
                    usable = looked
                elif looked - usable > LOST_SECONDS:
                    raise UserError(
                        f"no machine of the cluster can take {next(iter(tasks.waiting.values())).name}; start machines and "
                        "run the same command: it asks for what is missing"
                    )
        if tasks.removals:
            ray.wait([*tasks.removals], num_returns=len(tasks.removals), timeout=REMOVAL_SECONDS)
        for name, sentence in tasks.failed.items():
            others = f"; {len(tasks.failed) - 1} more failed" if len(tasks.failed) > 1 else ""
            raise UserError(f"{name}: {sentence}{others}; everything else is done, the same command tries again")
    except KeyboardInterrupt:
        tasks.stop()
        raise
    except ray.exceptions.LocalRayletDiedError:
        raise UserError("Ray has ended on this machine; start it again, and the same command continues") from None


def submit(
    requests: Sequence[TaskRequest],
    setup: Setup,
    events: "Queue",
    options: Mapping[str, Mapping[str, Any]],
    tasks: "_Tasks",
) -> None:
    """Give all tasks to Ray; it starts a task when its inputs are there.  options: by member."""
    import ray

    results: dict[str, ObjectRef[Any]] = {}  # result folder -> its result, or its archive
    remote, left = ray.remote(compute), list(requests)
    produced = {request.result_folder for request in requests}
    while left:
        request = next(r for r in left if all(name in results or name not in produced for name in r.inputs))
        left.remove(request)
        for name in request.inputs:
            if name not in results:
                results[name] = ray.put(tasks.callbacks.archive(name))
        inputs = [results[name] for name in request.inputs]
        chosen = options[request.member]
        reference = remote.options(**chosen).remote(request, setup, chosen["num_gpus"], events, *inputs)
        results[request.result_folder] = reference
        tasks.waiting[reference] = request
        tasks.undelivered[request.result_folder] = request.name


@dataclass
class _Tasks:
    """What is done, waiting or failed."""

    callbacks: Callbacks
    retries: int
    waiting: "dict[ObjectRef[Result], TaskRequest]" = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)  # task that has started -> machine
    starts: dict[str, int] = field(default_factory=dict)  # task -> how often it was started
    undelivered: dict[str, str] = field(default_factory=dict)  # result folder -> its task
    failed: dict[str, str] = field(default_factory=dict)  # task -> sentence
    removals: "list[ObjectRef[None]]" = field(default_factory=list)
    done: int = 0
    latest: str = ""

    def read(self, events: "Queue") -> None:
        """Show what the tasks tell."""
        while True:
            try:
                event: Event = events.get_nowait()
            except Empty:
                break
            if event.versions is None:
                if "%)" in event.text:  # its progress bar, where there is no terminal
                    self.latest = event.text
                if event.text.startswith("tune "):  # a trial has ended
                    self.callbacks.print_line(f"cluster: {event.address}: {event.text}")
                continue
            self.callbacks.compare_versions(event.address, event.versions)
            self.starts[event.task] = tries = self.starts.get(event.task, 0) + 1
            previous, self.addresses[event.task] = self.addresses.get(event.task, ""), event.address
            if tries > 1:
                self.callbacks.print_line(
                    f"cluster: {event.task} failed or was lost on {previous} and is started again on {event.address} "
                    f"(try {tries} of {self.retries + 1})"
                )
        running = {request.name for request in self.waiting.values()} & self.addresses.keys()
        self.callbacks.show(Status(self.done, {name: self.addresses[name] for name in running}, self.latest))

    def finish(self, reference: "ObjectRef[Result]") -> None:
        """Bring a result home, or note why there is none."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        request = self.waiting.pop(reference)
        missing = [name for name in request.inputs if name in self.undelivered]
        try:
            result = ray.get(reference)
        except ray.exceptions.RayError as error:
            cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
            sentence = " ".join(str(cause).split())[:500]
            if missing:
                sentence = f"it needs {self.undelivered[missing[0]]}, which failed"
            elif not isinstance(cause, TaskError):
                times = self.starts.get(request.name, 0)
                sentence = f"started {counted(times, 'time')} without a result, most recently: {sentence}"
            self.failed[request.name] = sentence
            self.callbacks.print_line(f"cluster: {request.name} failed: {sentence}")
        else:
            self.callbacks.deliver(request, result.archive)
            del self.undelivered[request.result_folder]
            self.done += 1
            there = NodeAffinitySchedulingStrategy(result.node, soft=False)
            remove = ray.remote(shutil.rmtree).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            self.removals.append(remove.remote(result.folder, ignore_errors=True))

    def stop(self) -> None:
        """End all tasks; the processes write their checkpoints first."""
        import ray

        running = [request.name for request in self.waiting.values() if request.name in self.addresses]
        self.callbacks.print_line(f"cluster: stopping {len(running)} running tasks; training writes its checkpoints")
        for reference in self.waiting:
            ray.cancel(reference)
        with contextlib.suppress(KeyboardInterrupt):
            ray.wait([*self.waiting], num_returns=len(self.waiting), timeout=STOP_SECONDS)
