"""Arrays and small facts on disk such that a kill at any moment leaves the last or the last but one whole."""

import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from competition.artifacts.manifest import atomic_write, sha256, write_json

KEPT = 2  # generations: the newest may have been damaged by what stopped the run


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """No pickles: a weights file is data, never code."""
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


class Checkpoints:
    """Generations of one fold model in training. `made_from` is the digest of everything the model depends on."""

    def __init__(self, folder: Path, made_from: str) -> None:
        self._folder, self._made_from = folder, made_from

    def save(self, step: int, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
        """The state after `step` steps. It and the one before stay; what is older, later or of other models goes."""
        path = self._folder / f"step-{step:08}.npz"
        save_arrays(path, arrays)
        write_json(
            path.with_suffix(".json"), {"made_from": self._made_from, "sha256": sha256(path), "step": step, **facts}
        )
        own = [found for found in self._generations() if found.stem <= path.stem and self._is_own(found)]
        for other in set(self._generations()) - set(own[:KEPT]):
            other.unlink(missing_ok=True)
            other.with_suffix(".npz").unlink(missing_ok=True)

    def latest(self, at_most: int | None = None) -> tuple[int, dict[str, np.ndarray], dict[str, Any], list[str]] | None:
        """(step, arrays, facts, files passed over as damaged) of the newest whole generation, or None.

        at_most: steps; what has gone further is passed over, because another host has not.
        """
        damaged: list[str] = []
        for path in self._generations():
            try:
                facts = json.loads(path.read_text(encoding="utf-8"))
                arrays_path = path.with_suffix(".npz")
                if facts["made_from"] != self._made_from or (at_most is not None and facts["step"] > at_most):
                    continue
                if sha256(arrays_path) != facts["sha256"]:
                    raise ValueError("digest")
                return int(facts["step"]), load_arrays(arrays_path), facts, damaged
            except (OSError, ValueError, KeyError, TypeError, BadZipFile):
                damaged.append(path.stem)
        return None

    def clear(self) -> None:
        """Remove all generations: the finished fold model stands in their place."""
        for file in [*self._folder.glob("step-*"), *self._folder.glob(".step-*")]:
            file.unlink(missing_ok=True)
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _is_own(self, path: Path) -> bool:
        try:
            return bool(json.loads(path.read_text(encoding="utf-8"))["made_from"] == self._made_from)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _generations(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.json"), reverse=True)
