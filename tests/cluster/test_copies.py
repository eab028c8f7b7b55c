"""Data and checkpoints in a shared folder."""

import json
from pathlib import Path

import pytest

from competition.cluster import copies
from competition.config.errors import UserError
from competition.files.manifest import sha256


def checkpoint(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"step-{step:08}.npz").write_bytes(b"%d" % step)
    (folder / f"step-{step:08}.json").write_text(json.dumps({"step": step}))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_the_checkpoints_of_a_lost_machine_reach_another_one_and_are_removed_at_the_end(tmp_path: Path) -> None:
    lost, shared, other = tmp_path / "lost", tmp_path / "shared", tmp_path / "other"
    checkpoint(lost, 1)
    copies.publish_checkpoints(lost, str(shared))
    (lost / "step-00000001.npz").unlink()
    (lost / "step-00000001.json").unlink()
    checkpoint(lost, 2)
    copies.publish_checkpoints(lost, str(shared))
    assert names(shared) == ["step-00000002.json", "step-00000002.npz"]
    assert copies.fetch_checkpoints(str(shared), other) and names(other) == names(lost)
    checkpoint(shared, 3)
    assert not copies.fetch_checkpoints(str(shared), other)  # its own checkpoints come first
    copies.remove_checkpoints(str(shared))
    assert names(shared) == [] and not copies.fetch_checkpoints(str(tmp_path / "none"), tmp_path / "new")


def test_data_are_published_once_and_a_damaged_copy_is_an_error(tmp_path: Path) -> None:
    home, shared, machine = tmp_path / "home", tmp_path / "shared", tmp_path / "machine"
    home.mkdir()
    files = {}
    for name in ("index.csv", "manifest.json"):
        (home / name).write_text(name)
        files[f"x/data/{name}"] = (sha256(home / name), home / name)
    digests = {name: digest for name, (digest, _) in files.items()}
    assert [copies.publish_data(str(shared), files) for _ in range(2)] == [2, 0]
    copies.fetch_data(str(shared), machine, digests)
    copies.fetch_data(str(shared), machine, digests)
    assert names(machine) == ["data.lock", "index.csv", "manifest.json"]
    (shared / "x/data/index.csv").write_text("other")
    (machine / "x/data/index.csv").unlink()
    with pytest.raises(UserError, match=r"index\.csv is not what its manifest says"):
        copies.fetch_data(str(shared), machine, digests)
