"""Run tasks on a Ray cluster: every task is done exactly once, whichever machines come and go.

The driver alone decides and keeps all results. A task is given to one slot; it is given to another one only when Ray
has declared the first one dead, or when it reported its failure.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from competition.cluster import connection
from competition.cluster.preparation import JoinedMachine, ObjectStore, begin_preparation
from competition.cluster.progress import Progress
from competition.cluster.schedule import Cluster, Open, Start, Task, decide
from competition.cluster.slots import POLL_SECONDS, OpenSlot, open_slot
from competition.cluster.tasks import MACHINE_ERRORS, Tasks
from competition.cluster.work import Callbacks, Setup, Work
from competition.config.errors import UserError

LOOK_SECONDS = 3.0  # between two looks at the list of machines
REPORT_SECONDS = 30.0  # that the first task waits for machines to report
STOP_SECONDS = 60.0  # for the checkpoints after Ctrl-C


def run_works(ray: Any, setup: Setup, works: Sequence[Work], callbacks: Callbacks, public: bool) -> None:
    """Run all tasks. Raises UserError, at the end, if some failed.

    public: machines with public addresses are allowed.
    Ctrl-C asks the machines for checkpoints and ends their processes.
    """
    driver = _Driver(ray, setup, works, callbacks, public)
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
    def __init__(self, ray: Any, setup: Setup, works: Sequence[Work], callbacks: Callbacks, public: bool) -> None:
        self._ray, self._setup, self._callbacks, self._public = ray, setup, callbacks, public
        self._tasks = Tasks(works, setup.retries)
        self._store = ObjectStore(ray, callbacks.pack)
        self._machines: dict[str, JoinedMachine] = {}  # by Ray's identity
        self._slots: dict[int, OpenSlot] = {}  # by number
        self._progress = Progress(self._tasks, max(setup.wait, 2 * LOOK_SECONDS))
        self._numbers = count(1)
        self._looked = -1e9
        self._report_until = time.monotonic() + REPORT_SECONDS

    def run(self) -> None:
        while self._tasks.pending or self._busy:
            self._look()
            self._dispatch()
            self._collect()
            self._progress.check(bool(self._busy) or any(joined.steps for joined in self._machines.values()))
            self._callbacks.show(self._progress.status(self._cluster(), self._busy))
        if failed := self._tasks.failed:
            name, sentence = next(iter(failed.items()))
            others = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
            raise UserError(f"{name}: {sentence}{others}; everything else is done, the same command tries again")

    def stop(self) -> None:
        """Ask for checkpoints of what runs, and wait for them."""
        if busy := self._busy:
            checkpoints = ", which write their checkpoints" if self._setup.settings.get("verb") == "train" else ""
            self._print(f"cluster: stopping; running tasks: {len(busy)}{checkpoints}")
        for slot in busy:
            slot.is_stopping = True
            slot.actor.stop.remote()
        end = time.monotonic() + STOP_SECONDS
        self._tasks.pending = []
        while self._busy and time.monotonic() < end:
            self._collect()

    def close(self) -> None:
        for slot in list(self._slots.values()):
            self._close(slot)
        for joined in self._machines.values():
            self._ray.kill(joined.actor)  # no error if it is dead

    @property
    def _busy(self) -> list[OpenSlot]:
        return [slot for slot in self._slots.values() if slot.is_busy]

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._callbacks.print_line(line)

    # Machines

    def _look(self) -> None:
        """Prepare machines that came, give up those that went."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        alive = {machine.identity: machine for machine in connection.alive_machines(self._ray)}
        for identity, machine in alive.items():
            if identity not in self._machines and machine.resources["CPU"] > 0:
                connection.check_addresses([machine], self._public)
                self._machines[identity] = begin_preparation(
                    self._ray, machine, self._setup, self._store, self._tasks, self._callbacks, self._deliver
                )
        for identity in self._machines.keys() - alive.keys():
            self._lose_machine(self._machines[identity])

    def _lose_machine(self, joined: JoinedMachine) -> None:
        """Give the tasks of a machine that is gone to others."""
        address, identity = joined.machine.address, joined.machine.identity
        if self._machines.pop(identity, None) is None:
            return
        slots = [slot for slot in self._slots.values() if slot.joined is joined]
        if not slots:
            self._print(f"cluster: {address} is gone")
        for slot in slots:
            self._return_task(slot, f"{address} is gone")
            self._slots.pop(slot.slot.number, None)
        self._tasks.machine_gone(identity)

    def _advance(self, joined: JoinedMachine) -> None:
        """Take the next step of a machine's preparation once all it waits for is there."""
        if joined.steps is None or joined.machine.identity not in self._machines:
            return
        ready, _ = self._ray.wait(joined.awaited, num_returns=len(joined.awaited), timeout=0)
        if len(ready) < len(joined.awaited):
            return
        try:
            joined.awaited = joined.steps.send(self._ray.get(joined.awaited))
        except StopIteration:
            joined.steps, joined.awaited = None, []
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ActorUnschedulableError):
            self._lose_machine(joined)
        except self._ray.exceptions.RayTaskError as error:
            raise UserError(f"{joined.machine.address} could not be prepared: {_one_line(error)}") from None

    # Slots

    def _dispatch(self) -> None:
        """Start all tasks that can run now, once all machines have said what they finished for an earlier command."""
        have_reported = all(joined.has_reported for joined in self._machines.values())
        if not have_reported and time.monotonic() < self._report_until:
            return
        while step := decide(self._cluster(), self._tasks.expected_pending(), self._tasks.done):
            slot = self._slots[step.slot.number] if isinstance(step, Start) else self._open(step)
            self._start(slot, step.task)

    def _cluster(self) -> Cluster:
        ready = {name: joined.machine.resources for name, joined in self._machines.items() if joined.steps is None}
        slots = [slot.remaining for slot in self._slots.values()]
        tasks = self._tasks
        return Cluster(ready, slots, self._setup.needs, tasks.start_seconds, tasks.prefer, tasks.avoid)

    def _open(self, step: Open) -> OpenSlot:
        for closing in step.closing:
            self._close(self._slots[closing.number])
        number = next(self._numbers)
        self._slots[number] = open_slot(self._ray, step, number, self._machines[step.machine], self._setup)
        return self._slots[number]

    def _start(self, slot: OpenSlot, task: Task) -> None:
        work = self._tasks.works[task.name]
        self._tasks.start(task.name)
        for unit in work.inputs:
            slot.calls.append(slot.actor.install.remote(unit, *self._store.packed_unit(unit)))
        slot.start(work, task)

    def _close(self, slot: OpenSlot) -> None:
        self._ray.kill(slot.actor)  # no error if it is dead
        self._slots.pop(slot.slot.number, None)

    # Answers

    def _collect(self) -> None:
        """Wait for the next answers of the machines and act on them."""
        polls = {slot.poll: slot for slot in self._slots.values() if slot.poll is not None}
        calls = {ref: slot for slot in self._slots.values() for ref in slot.calls}
        preparations = {ref: joined for joined in self._machines.values() for ref in joined.awaited}
        refs = [*polls, *calls, *preparations]
        if not refs:
            time.sleep(POLL_SECONDS)
            return
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=POLL_SECONDS)
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0) if ready else ([], refs)
        for ref in ready:
            if ref in polls and polls[ref].slot.number in self._slots:
                self._read(polls[ref])
            elif ref in calls and calls[ref].slot.number in self._slots:
                self._check_call(calls[ref], ref)
            elif ref in preparations:
                self._advance(preparations[ref])

    def _read(self, slot: OpenSlot) -> None:
        errors = self._ray.exceptions
        try:
            events = self._ray.get(slot.poll)
        except errors.ActorUnavailableError:
            slot.ask()  # the connection may come back; only a death frees the task
            return
        except (errors.RayActorError, errors.ActorUnschedulableError):
            self._lose_slot(slot)
            return
        except errors.RayTaskError as error:
            self._return_task(slot, f"{slot.address}: {_one_line(error)}")
            self._close(slot)
            return
        for event in events:
            slot.seen = event["number"]
            self._act(slot, event)
        if slot.slot.number in self._slots:
            slot.poll = None
            if slot.is_busy:
                slot.ask()

    def _check_call(self, slot: OpenSlot, call: Any) -> None:
        """Give a task to another slot if it could not be started in this one. The death of the slot is seen by its poll."""
        slot.calls.remove(call)
        try:
            self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            self._return_task(slot, f"{slot.address}: {_one_line(error)}")
            self._close(slot)
        except self._ray.exceptions.RayError:
            return

    def _lose_slot(self, slot: OpenSlot) -> None:
        """Give up a slot that Ray has declared dead, and its machine if that is dead too."""
        alive = {machine.identity for machine in connection.alive_machines(self._ray)}
        if slot.joined.machine.identity in alive:
            self._return_task(slot, f"Ray's process for {slot.slot.member} on {slot.address} has ended")
            self._slots.pop(slot.slot.number, None)
        else:
            self._lose_machine(slot.joined)

    def _act(self, slot: OpenSlot, event: Mapping[str, Any]) -> None:
        name, kind = slot.slot.task, event["event"]
        if kind == "line":
            self._print(f"cluster: {slot.address}: {event['text']}")
        elif kind == "progress":
            if seconds := slot.show_progress(event):
                self._tasks.measured_start(seconds)
        elif kind == "done" and name:
            self._tasks.measured(slot.slot.member, event["seconds"])
            slot.is_warm = True
            slot.free()
            self._deliver(self._tasks.works[name], event["digest"], event["pack"])
        elif kind == "failed" and name:
            if MACHINE_ERRORS & set(event["kinds"]):
                self._return_task(slot, f"{slot.address}: {event['message']}", on_machine=True)
            else:
                self._print(*self._tasks.fail(name, event["message"]))
            slot.free()
        elif kind == "ended":
            slot.is_warm = False
            lines = "; ".join(event["lines"])
            reason = f"the process on {slot.address} ended with code {event['code']} ({lines}; {event['log']})"
            self._return_task(slot, reason, on_machine=True)

    def _return_task(self, slot: OpenSlot, reason: str, on_machine: bool = False) -> None:
        """Let another slot run the task of this one, unless that was done too often.  on_machine: see Tasks.lost."""
        name = slot.slot.task
        slot.free()
        if name and not slot.is_stopping:
            is_shared = bool(self._setup.settings.get("checkpoints"))
            self._print(*self._tasks.lost(name, slot.slot.machine, reason, on_machine, is_shared))

    def _deliver(self, work: Work, digest: str, data: bytes) -> None:
        self._callbacks.deliver(work, digest, data)
        self._tasks.finish(work.task.name)
        for joined in self._machines.values():  # an earlier try may have left checkpoints on another machine
            joined.actor.remove.remote(work.unit)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[-300:]
