"""Checkpoints: a kill at any moment leaves the newest or the one before it complete."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from competition.config.faults import fault_point
from competition.files.manifest import atomic_write, read_record, sha256, write_json

KEPT = 2  # checkpoints: the newest may have been damaged by what stopped the run


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with atomic_write(path) as temporary, temporary.open("wb") as file:  # NumPy appends a suffix to a path without one
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file. Pickled objects are an error: a weights file is data, never code."""
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


class Checkpoint(NamedTuple):
    step: int  # steps done
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]  # content of its JSON file


@dataclass
class Checkpoints:
    """The checkpoints of one fold model in training."""

    folder: Path
    made_from: str  # digest of everything the model depends on
    seconds: float = 0.0  # between checkpoints; 0 = one per epoch
    is_writer: bool = True  # False: another host writes the checkpoints of both
    _last: float = field(default_factory=lambda: time.monotonic())

    def is_due(self, epoch_ends: bool) -> bool:
        """True once `seconds` have passed since the last save; with 0 seconds at the end of every epoch."""
        return time.monotonic() - self._last >= self.seconds if self.seconds else epoch_ends

    def save(self, step: int, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
        """Save the state after `step` steps. Keep it and the one before; delete older, later and foreign checkpoints."""
        self._last = time.monotonic()
        if not self.is_writer:
            return
        path = self.folder / f"step-{step:08}.npz"
        fault_point("checkpoint.before_arrays", path)
        save_arrays(path, arrays)
        fault_point("checkpoint.before_facts", path)
        facts = {"made_from": self.made_from, "sha256": sha256(path), "step": step, **facts}
        write_json(path.with_suffix(".json"), facts)
        fault_point("checkpoint.before_cleanup", path)
        files = sorted(self.folder.glob("step-*.json"), reverse=True)  # the newest first
        made_from = {file: (read_record(file, dict[str, Any]) or {}).get("made_from") for file in files}
        own = [file for file, of in made_from.items() if file.stem <= path.stem and of == self.made_from]
        for obsolete in set(files) - set(own[:KEPT]):
            obsolete.unlink(missing_ok=True)
            obsolete.with_suffix(".npz").unlink(missing_ok=True)

    def latest(self, at_most: int | None = None) -> Checkpoint | None:
        """The newest intact checkpoint, or None.

        at_most: number of steps; skip checkpoints of more, because another host does not have them.
        """
        for path in sorted(self.folder.glob("step-*.json"), reverse=True):
            with suppress(OSError, ValueError, KeyError, TypeError, BadZipFile):  # of a damaged one
                facts, arrays_path = json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".npz")
                is_wanted = facts["made_from"] == self.made_from and (at_most is None or facts["step"] <= at_most)
                if is_wanted and sha256(arrays_path) == facts["sha256"]:
                    return Checkpoint(int(facts["step"]), load_arrays(arrays_path), facts)
        return None

    def clear(self) -> None:
        """Remove all checkpoints, once the fold model is complete."""
        for file in [*self.folder.glob("step-*"), *self.folder.glob(".step-*")]:
            file.unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
