"""A result is current only if it is complete, undamaged and was made from exactly the current inputs."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from competition.files import manifest as m

VERSIONS = {"python": "3"}


def write_result(folder: Path, depends: dict[str, object]) -> Path:
    """Write two files and their manifest; return the path of the manifest."""
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    files = [folder / "a.bin", folder / "sub" / "b.bin"]
    for file in files:
        file.write_bytes(file.name.encode() * 10)
    m.write_manifest(folder / "manifest.json", depends, files, {"score": 0.5}, VERSIONS)
    return folder / "manifest.json"


def test_a_result_is_current_only_for_the_dependencies_it_was_made_from(tmp_path: Path) -> None:
    path = write_result(tmp_path, {"rate": 0.1, "views": ("a", "b")})
    assert m.is_current(path, {"views": ["a", "b"], "rate": 0.1})  # neither order of keys nor list or tuple matters
    assert not m.is_current(path, {"rate": 0.2, "views": ["a", "b"]})
    assert not m.is_current(path, {"rate": 0.1})
    assert not m.is_current(tmp_path / "nowhere.json", {})


@pytest.mark.parametrize("damage", ["changed", "deleted", "folder"])
def test_a_damaged_file_is_not_current(tmp_path: Path, damage: str) -> None:
    path, file = write_result(tmp_path, {}), tmp_path / "sub" / "b.bin"
    data = file.read_bytes()
    if damage == "changed":
        file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    else:
        file.unlink()
        if damage == "folder":
            file.mkdir()
    assert not m.is_current(path, {})


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"digest": "x"}', b"\xff\xfe{}", b"digest", b"depends", b"files"]
)
def test_an_invalid_manifest_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    """A key alone stands for a manifest with a value of a wrong type there."""
    path = write_result(tmp_path, {})
    wrong_value = json.dumps({**json.loads(path.read_text()), content.decode(errors="replace"): 7}).encode()
    path.write_bytes(wrong_value if content.isalpha() else content)
    assert m.read_manifest(path) is None and not m.is_current(path, {})


def test_a_writer_that_fails_leaves_the_old_file_and_no_temporary_file(tmp_path: Path) -> None:
    path = write_result(tmp_path, {"n": 1})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ZeroDivisionError), m.atomic_write(tmp_path / "a.bin") as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="not JSON compliant"):
        m.write_json(tmp_path / "a.bin", float("nan"))
    assert sorted(tmp_path.rglob("*")) == before
    assert m.is_current(path, {"n": 1})


def test_a_written_file_appears_complete_and_is_readable_by_others(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "x.npy"
    with m.atomic_write(file) as temporary:
        np.save(temporary, np.arange(3))  # numpy adds a suffix to a name without one
        assert not file.exists()
    assert [*file.parent.iterdir()] == [file] and file.stat().st_mode & 0o777 == 0o644


def test_digests_are_of_values_not_of_python_types() -> None:
    block = m.Manifest("d", {"rate": 0.5}, {}, {}, {})
    assert m.digest_of(block) == m.digest_of(asdict(block))
    values = {"rate": np.float64(0.5), "views": ("a",), "n": np.int64(3), "p": Path("a/b"), 1: {2, 1}}
    assert m.digest_of(values) == m.digest_of({"rate": 0.5, "views": ["a"], "n": 3, "p": "a/b", "1": [1, 2]})
    assert m.digest_of({"rate": 1}) != m.digest_of({"rate": 1.5})
    with pytest.raises(ValueError):
        m.digest_of({"rate": float("nan")})


def test_differences_name_the_keys_with_both_values() -> None:
    before = {"member": {"train": {"epochs": 2, "batch": 8}}, "data": "a" * 64, "gone": 1}
    after = {"member": {"train": {"epochs": 3, "batch": 8}}, "data": "b" * 64, "new": [1]}
    assert m.changed_keys(before, after) == [
        "member.train.epochs: 2 -> 3",
        "data: aaaaaaaaaaaa -> bbbbbbbbbbbb",
        "gone: 1 -> absent",
        "new: absent -> [1]",
    ]
    drawn = {"rate": 0.005508504878833396, "decay": 0.0123456789}
    assert m.changed_keys(drawn, {"rate": 0.004, "decay": 0.0123456788}) == [
        "rate: 0.00551 -> 0.004",
        "decay: 0.0123456789 -> 0.0123456788",
    ]
