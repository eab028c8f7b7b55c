"""A result is current only if it is complete and of the current inputs; a model replaces the earlier one only when it is complete."""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import write_weights

from competition.files import manifest as m
from competition.files.replacement import finish_replacements, replace_model, retraining_path


def write_result(folder: Path, depends: dict[str, object]) -> Path:
    """Write two files and their manifest; return the path of the manifest."""
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    files = [folder / "a.bin", folder / "sub" / "b.bin"]
    for file in files:
        file.write_bytes(file.name.encode() * 10)
    m.write_manifest(folder / "manifest.json", depends, files, {"score": 0.5}, {"python": "3"})
    return folder / "manifest.json"


def test_a_result_is_current_only_for_the_dependencies_it_was_made_from(tmp_path: Path) -> None:
    path = write_result(tmp_path, {"rate": 0.1, "views": ("a", "b")})
    # Neither the order of keys nor list or tuple matters.
    assert m.Stored(path, {"views": ["a", "b"], "rate": 0.1}).is_current
    assert not m.Stored(path, {"rate": 0.2, "views": ["a", "b"]}).is_current
    assert not m.Stored(path, {"rate": 0.1}).is_current
    assert not m.Stored(tmp_path / "nowhere.json", {}).is_current


def test_a_result_with_a_changed_or_deleted_file_or_a_folder_in_its_place_is_not_current(tmp_path: Path) -> None:
    path, file = write_result(tmp_path, {}), tmp_path / "sub" / "b.bin"
    assert m.Stored(path, {}).is_current
    changed = bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]
    for damage in (lambda: file.write_bytes(changed), file.unlink, file.mkdir):
        damage()
        assert not m.Stored(path, {}).is_current


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"digest": "x"}', b"\xff\xfe{}", b"digest", b"depends", b"files"]
)
def test_an_invalid_manifest_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    """A key alone stands for a manifest with a value of a wrong type there."""
    path = write_result(tmp_path, {})
    wrong_value = json.dumps({**json.loads(path.read_text()), content.decode(errors="replace"): 7}).encode()
    path.write_bytes(wrong_value if content.isalpha() else content)
    assert m.read_manifest(path) is None and not m.Stored(path, {}).is_current


def test_a_writer_that_fails_leaves_the_old_file_and_a_new_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = write_result(tmp_path, {"n": 1})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ZeroDivisionError), m.atomic_write(tmp_path / "a.bin") as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="not JSON compliant"):
        m.write_json(tmp_path / "a.bin", float("nan"))
    assert sorted(tmp_path.rglob("*")) == before and m.Stored(path, {"n": 1}).is_current
    # One that ends well: the file appears complete, and others may read it.
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


MODEL = "fold2/manifest.json"


def weights_of(manifest: Path) -> bytes:
    """Weights of a complete model."""
    assert m.intact_manifest(manifest) is not None
    return manifest.with_name("weights.npz").read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with one complete model and its predictions."""
    folder = tmp_path / "members" / "cnn" / "0123456789ab"
    write_weights(folder / "fold2", b"old")
    (folder / "fold2" / "views").mkdir()
    (folder / "fold2" / "views" / "oof.npz").write_bytes(b"predictions")
    return folder


def test_a_model_that_is_not_complete_replaces_nothing(run: Path, tmp_path: Path) -> None:
    again = retraining_path(run, run / MODEL)
    again.parent.mkdir(parents=True)
    again.with_name("weights.npz").write_bytes(b"half")
    finish_replacements(tmp_path)
    assert weights_of(run / MODEL) == b"old" and again.with_name("weights.npz").exists()


@pytest.mark.parametrize("weights", [b"new", b"old"])
def test_a_complete_model_replaces_the_earlier_one_and_equal_weights_keep_their_predictions(run, weights) -> None:
    write_weights(retraining_path(run, run / MODEL).parent, weights)
    replace_model(run, run / MODEL)
    assert weights_of(run / MODEL) == weights
    assert (run / "fold2" / "views" / "oof.npz").exists() == (weights == b"old")
    assert {path.name for path in run.iterdir()} == {"fold2", "replace.lock"}


def killed_replacement(run: Path, count: int) -> None:
    """In a process of its own: replace the model, and be killed before change number `count` of a folder."""
    remaining = iter(range(count))

    def counted(function: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(remaining, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    os.rename, os.replace, os.mkdir, shutil.rmtree = map(counted, (os.rename, os.replace, os.mkdir, shutil.rmtree))
    replace_model(run, run / MODEL)


def test_a_kill_at_any_moment_leaves_one_complete_model_and_the_next_command_finishes(run: Path, tmp_path) -> None:
    for kills in count():
        write_weights(retraining_path(run, run / MODEL).parent, b"new")
        process = multiprocessing.get_context("fork").Process(target=killed_replacement, args=(run, kills))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        finish_replacements(tmp_path)
        assert weights_of(run / MODEL) == b"new"
        assert {path.name for path in run.iterdir()} == {"fold2", "replace.lock"}
        write_weights(run / "fold2", b"old")
    assert kills >= 3  # between any two of its renames
