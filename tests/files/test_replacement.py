"""A model that is trained again replaces the earlier one only when it is complete, whatever is killed when."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from competition.files.manifest import files_intact, read_manifest, write_manifest
from competition.files.replacement import finish_replacements, replace_model, retraining_path

MODEL = "fold2/manifest.json"


def write_model(manifest: Path, weights: bytes) -> None:
    manifest.parent.mkdir(parents=True, exist_ok=True)
    file = manifest.with_name("weights.npz")
    file.write_bytes(weights)
    write_manifest(manifest, {}, [file], {}, {})


def weights_of(manifest: Path) -> bytes:
    """Weights of a complete model."""
    recorded = read_manifest(manifest)
    assert recorded is not None and files_intact(manifest, recorded)
    return manifest.with_name("weights.npz").read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with one complete model and its predictions."""
    folder = tmp_path / "members" / "cnn" / "0123456789ab"
    write_model(folder / MODEL, b"old")
    (folder / MODEL).with_name("views").mkdir()
    ((folder / MODEL).with_name("views") / "oof.npz").write_bytes(b"predictions")
    return folder


def test_a_model_that_is_not_complete_replaces_nothing(run: Path, tmp_path: Path) -> None:
    again = retraining_path(run, run / MODEL)
    again.parent.mkdir(parents=True)
    again.with_name("weights.npz").write_bytes(b"half")
    finish_replacements(tmp_path)
    assert weights_of(run / MODEL) == b"old" and again.with_name("weights.npz").exists()


@pytest.mark.parametrize(("weights", "keeps_predictions"), [(b"new", False), (b"old", True)])
def test_a_complete_model_replaces_the_earlier_one_and_equal_weights_keep_their_predictions(
    run, weights, keeps_predictions
):
    write_model(retraining_path(run, run / MODEL), weights)
    replace_model(run, run / MODEL)
    assert weights_of(run / MODEL) == weights
    assert (run / "fold2" / "views" / "oof.npz").exists() == keeps_predictions
    assert {path.name for path in run.iterdir()} == {"fold2", "replace.lock"}


def killed_replacement(run: Path, count: int) -> None:
    """In a process of its own: replace the model, and be killed before change number `count` of a folder."""
    remaining = iter(range(count))

    def counted(function: Callable) -> Callable:
        return lambda *arguments, **options: (
            function(*arguments, **options)
            if next(remaining, None) is not None
            else os.kill(os.getpid(), signal.SIGKILL)
        )

    os.rename, os.replace, os.mkdir, shutil.rmtree = map(counted, (os.rename, os.replace, os.mkdir, shutil.rmtree))
    replace_model(run, run / MODEL)


def test_a_kill_at_any_moment_leaves_one_complete_model_and_the_next_command_finishes(run: Path, tmp_path) -> None:
    for kills in count():
        write_model(retraining_path(run, run / MODEL), b"new")
        process = multiprocessing.get_context("fork").Process(target=killed_replacement, args=(run, kills))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        finish_replacements(tmp_path)
        assert weights_of(run / MODEL) == b"new"
        assert {path.name for path in run.iterdir()} == {"fold2", "replace.lock"}
        write_model(run / MODEL, b"old")
    assert kills >= 3  # between any two of its renames
