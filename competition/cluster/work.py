"""What a command gives the driver: its tasks, what every machine needs for them, and the functions that the driver calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.cluster.schedule import Task
from competition.config.params import Needs


@dataclass(frozen=True)
class Work:
    """A task with all that a machine needs for it."""

    task: Task
    unit: str  # folder of its result, relative to work/
    request: Mapping[str, Any]  # for the computing process
    inputs: tuple[str, ...] = ()  # units that it reads
    keeps_checkpoints: bool = True  # a task that is started again continues from one


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
class Row:
    """A running task, for the screen."""

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


@dataclass(frozen=True)
class Callbacks:
    """What the driver calls in its own process."""

    pack: Callable[[str], tuple[str, bytes]]  # unit -> (sha256, bytes) of its pack, for `inputs`
    deliver: Callable[[Work, str, bytes], None]  # a result came: its work, sha256 and pack
    print_line: Callable[[str], None]
    show: Callable[[Status], None]
    compare_versions: Callable[[str, Mapping[str, str]], None]  # address, versions of the packages there
