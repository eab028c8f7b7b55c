"""After any damage, the newest complete checkpoint is loaded, or none."""

import json
from pathlib import Path

import numpy as np
import pytest

from competition.files.manifest import sha256
from competition.training import checkpoint as checkpoint_module
from competition.training.checkpoint import Checkpoints, save_arrays


def arrays(step: int) -> dict[str, np.ndarray]:
    return {"a": np.full((3, 2), step, np.float32), "b/c": np.arange(step, step + 4)}


def saved(folder: Path, *steps: int, made_from: str = "x") -> Checkpoints:
    checkpoints = Checkpoints(folder, made_from)
    for step in steps:
        checkpoints.save(step, arrays(step), {"total": step / 10})
    return checkpoints


def test_two_checkpoints_are_kept_and_the_newest_is_loaded_unchanged(tmp_path: Path) -> None:
    saved(tmp_path, 5, 10, 15)
    checkpoint = Checkpoints(tmp_path, "x").latest()
    assert checkpoint is not None and (checkpoint.step, checkpoint.facts["total"]) == (15, 1.5)
    for name, value in arrays(15).items():
        np.testing.assert_array_equal(checkpoint.arrays[name], value)
        assert checkpoint.arrays[name].dtype == value.dtype
    assert {path.stem for path in tmp_path.iterdir()} == {"step-00000010", "step-00000015"}


def test_a_checkpoint_of_another_configuration_is_not_used(tmp_path: Path) -> None:
    saved(tmp_path, 1, 10, made_from="other")
    assert Checkpoints(tmp_path, "x").latest() is None
    checkpoint = saved(tmp_path, 3).latest()
    assert checkpoint is not None and checkpoint.step == 3
    assert len(list(tmp_path.iterdir())) == 2  # it is deleted with the first checkpoint of this configuration


def flip_a_bit(npz: Path, facts: Path) -> None:
    data = bytearray(npz.read_bytes())
    data[len(data) // 2] ^= 1
    npz.write_bytes(data)


def rewrite(npz: Path, facts: Path, **changes: object) -> None:
    facts.write_text(json.dumps({**json.loads(facts.read_text()), **changes}))


def replace_by_text(npz: Path, facts: Path) -> None:
    """No archive, but with its own digest."""
    npz.write_bytes(b"PK\x03\x04 but no archive")
    rewrite(npz, facts, sha256=sha256(npz))


DAMAGES = {
    "arrays cut": lambda npz, facts: npz.write_bytes(npz.read_bytes()[:-50]),
    "one bit": flip_a_bit,
    "arrays gone": lambda npz, facts: npz.unlink(),
    "facts cut": lambda npz, facts: facts.write_text(facts.read_text()[:20]),
    "facts no text": lambda npz, facts: facts.write_bytes(b"\xff\xfe\x00"),
    "facts another kind": lambda npz, facts: facts.write_text("[1, 2]"),
    "other arrays": lambda npz, facts: save_arrays(npz, {"a": np.zeros(1)}),
    "step no number": lambda npz, facts: rewrite(npz, facts, step=None),
    "no archive": replace_by_text,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_if_all_are_damaged_there_is_none(tmp_path, damage) -> None:
    saved(tmp_path, 5, 10)
    DAMAGES[damage](tmp_path / "step-00000010.npz", tmp_path / "step-00000010.json")
    checkpoint = Checkpoints(tmp_path, "x").latest()
    assert checkpoint is not None
    step, loaded, _ = checkpoint
    assert step == 5
    np.testing.assert_array_equal(loaded["a"], arrays(5)["a"])
    DAMAGES[damage](tmp_path / "step-00000005.npz", tmp_path / "step-00000005.json")
    assert Checkpoints(tmp_path, "x").latest() is None


def test_checkpoints_are_due_after_an_epoch_or_after_some_seconds(tmp_path: Path, monkeypatch) -> None:
    every_epoch, now = Checkpoints(tmp_path, "x"), [100.0]
    assert every_epoch.is_due(True) and not every_epoch.is_due(False)
    monkeypatch.setattr(checkpoint_module.time, "monotonic", lambda: now[0])
    timed = Checkpoints(tmp_path, "x", 300.0)
    now[0] = 399.0
    assert not timed.is_due(True)
    now[0] = 400.0
    assert timed.is_due(False)
    timed.save(5, arrays(5), {})
    assert not timed.is_due(True)
