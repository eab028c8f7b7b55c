"""A slot in use: the process on a machine that keeps one member compiled, and the task that it runs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from competition.cluster import node
from competition.cluster.connection import pinned_actor
from competition.cluster.preparation import JoinedMachine
from competition.cluster.schedule import Open, Slot, Task
from competition.cluster.work import Row, Setup, Work

POLL_SECONDS = 1.0  # that a machine waits for an event before it answers


@dataclass
class OpenSlot:
    slot: Slot
    joined: JoinedMachine
    actor: Any  # node.Worker there
    poll: Any = None  # reference to the next events
    # References to what starts its task; an error in one must not be lost.
    calls: list[Any] = field(default_factory=list)
    seen: int = 0  # number of the last event
    text: str = "starting"
    share: float = 0.0  # of its task that is done
    is_warm: bool = False  # its process has finished a task
    started: float = 0.0  # time.monotonic() at which its process began to start; 0 = it runs
    is_stopping: bool = False

    @property
    def is_busy(self) -> bool:
        return bool(self.slot.task)

    @property
    def address(self) -> str:
        return self.joined.machine.address

    @property
    def row(self) -> Row:
        return Row(self.address, self.slot.task, self.text, self.share)

    @property
    def remaining(self) -> Slot:
        """For decisions: the slot with the seconds that are left of its task."""
        return replace(self.slot, seconds=self.slot.seconds * (1 - self.share))

    def start(self, work: Work, task: Task) -> None:
        """Give a task to the process.  task: with its expected seconds."""
        self.slot = replace(self.slot, task=task.name, seconds=task.seconds)
        self.share, self.text = 0.0, "" if self.is_warm else "starts"
        self.started = 0.0 if self.is_warm else time.monotonic()
        self.calls.append(self.actor.start.remote(dict(work.request)))
        if self.poll is None:
            self.ask()

    def free(self) -> None:
        self.slot = replace(self.slot, task="")

    def ask(self) -> None:
        """Ask for the next events."""
        self.poll = self.actor.events.remote(self.seen, POLL_SECONDS)

    def show_progress(self, event: Mapping[str, Any]) -> float:
        """Return the seconds of the start if these are the first steps of a process that was started, else 0."""
        self.text, self.share = event["text"], event["step"] / max(event["steps"], 1)
        if not self.started or not event["step"]:
            return 0.0
        seconds, self.started = time.monotonic() - self.started, 0.0
        return seconds


def open_slot(ray: Any, step: Open, number: int, joined: JoinedMachine, setup: Setup) -> OpenSlot:
    """Start a slot's actor on its machine; the computing process starts with its first task."""
    member, info = step.task.member, joined.info
    settings = {**setup.settings, "root": info["root"], "project": info["project"]}
    settings |= {"member": member, "gpus": step.taken["GPU"]}
    actor = pinned_actor(ray, node.Worker, joined.machine, step.taken)
    log = f"{info['root']}/logs/{member}-{number}.log"
    slot = Slot(number, step.machine, member, step.taken)
    return OpenSlot(slot, joined, actor.remote(list(setup.command), settings, log))
