"""Several hosts that train one model (JAX): only the first one writes to a folder that all of them see.

Where every host has a folder of its own, each keeps the results there; competition/training/network_trainer.py compares them. Where the
folder is the same, the first host decides what is missing, writes, and alone prints; the others compute with it and wait
for what it writes.
"""

import json
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.files.manifest import Manifest, read_manifest
from pipelines.terminal.progress import Bar

VISIBLE_SECONDS = 90.0  # that a network file system may take to show a file that another host has written
COLLECTIVE = ("resolve", "tune", "train", "predict")  # stages that all hosts run where they share a folder


def are_expected() -> bool:
    """Return True if the environment says that this process is one of several."""
    if not {"JAX_COORDINATOR_ADDRESS", "TPU_WORKER_HOSTNAMES"} & os.environ.keys():
        return False
    from competition.training.device import is_multi_host

    return is_multi_host()


def number() -> int:
    """Number of this host, 0 for the first one and for a single one."""
    if are_joined():
        return int(sys.modules["jax"].process_index())
    return int(os.environ.get("JAX_PROCESS_ID") or os.environ.get("TPU_WORKER_ID") or 0) if are_expected() else 0


def are_joined() -> bool:
    """Return True if this process is one of several that train one model, connected with each other."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


@dataclass
class Hosts:
    """What the hosts decide together, from `join` on.

    is_shared: whether the first host's folder is also this one's; None = not joined.
    """

    is_shared: bool | None = None

    def join(self, work: Path) -> None:
        """Find out whether the hosts see the same folder. Called on all of them, after each has opened its devices.

        work: work/<competition>.
        """
        if self.is_shared is not None or not are_joined():
            return
        token = _from_first(secrets.token_hex(8))
        mark = work / f".hosts-{token}"
        if number() == 0:
            work.mkdir(parents=True, exist_ok=True)
            mark.touch()
        _gathered(0)
        # A listing, because network file systems remember that a file was missing.
        self.is_shared = all(_gathered(mark in work.iterdir()))
        if number() == 0:
            mark.unlink(missing_ok=True)
        else:
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
            Bar.is_quiet = True

    def writes(self) -> bool:
        """Return True if this process writes results: always, unless another host writes to the same folder."""
        return number() == 0 or not self.is_shared

    def runs(self, stage: str) -> bool:
        """Return True if this host runs a stage."""
        if number() == 0:
            return True
        # Preflight comes before the hosts are connected, and the first one's is enough.
        return stage != "preflight" and (stage in COLLECTIVE or not self.is_shared)

    def decided(self, value: Any) -> Any:
        """The first host's value where hosts share a folder, else this one's.  value: plain JSON.

        What is on the disk can change between two looks of different hosts.
        """
        return _from_first(value) if self.is_shared else value

    def wait_for_all(self) -> None:
        """Wait until all hosts that share a folder are here."""
        if self.is_shared:
            _gathered(0)


def written(manifest: Path) -> Manifest:
    """Wait until the first host has written a result; return its manifest. Called on all hosts that share a folder."""
    _gathered(0)
    end = time.monotonic() + VISIBLE_SECONDS
    while (result := read_manifest(manifest)) is None:
        if time.monotonic() > end:
            raise UserError(f"{manifest} of the first host is not seen by host {number()}: check the shared folder")
        time.sleep(0.5)
    return result


def _gathered(value: int) -> list[int]:
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    return [int(each) for each in process_allgather(np.array(value, np.int32))]


def _from_first(value: Any) -> Any:
    import numpy as np
    from jax.experimental.multihost_utils import broadcast_one_to_all

    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = _gathered(len(data))[0]
    padded = np.zeros(length, np.uint8)
    padded[: min(length, len(data))] = data[:length]
    return json.loads(bytes(np.asarray(broadcast_one_to_all(padded)).astype(np.uint8)))
