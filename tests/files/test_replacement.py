"""A model that is trained again replaces the earlier one only when it is complete, whatever is killed when."""

from pathlib import Path

import pytest
from killing import is_killed

from competition.files.manifest import files_intact, read_manifest, write_manifest
from competition.files.replacement import finish_replacements, replace_model, retraining_path


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
def work(tmp_path: Path) -> Path:
    """A run with one complete model and its predictions."""
    manifest = model_in(tmp_path)
    write_model(manifest, b"old")
    (manifest.parent / "views").mkdir()
    (manifest.parent / "views" / "oof.npz").write_bytes(b"predictions")
    return tmp_path


def model_in(work: Path) -> Path:
    return work / "members" / "cnn" / "0123456789ab" / "fold2" / "manifest.json"


def run_in(work: Path) -> Path:
    return work / "members" / "cnn" / "0123456789ab"


def test_a_model_that_is_not_complete_replaces_nothing(work: Path) -> None:
    again = retraining_path(run_in(work), model_in(work))
    again.parent.mkdir(parents=True)
    again.with_name("weights.npz").write_bytes(b"half")
    finish_replacements(work)
    assert weights_of(model_in(work)) == b"old" and again.with_name("weights.npz").exists()


@pytest.mark.parametrize(("weights", "keeps_predictions"), [(b"new", False), (b"old", True)])
def test_a_complete_model_replaces_the_earlier_one_and_equal_weights_keep_their_predictions(
    work, weights, keeps_predictions
):
    write_model(retraining_path(run_in(work), model_in(work)), weights)
    replace_model(run_in(work), model_in(work))
    assert weights_of(model_in(work)) == weights
    assert (model_in(work).parent / "views" / "oof.npz").exists() == keeps_predictions
    assert {path.name for path in run_in(work).iterdir()} == {"fold2", "replace.lock"}


def test_a_kill_at_any_moment_leaves_one_complete_model_and_the_next_command_finishes(work: Path) -> None:
    code = f"""
from pathlib import Path
from competition.files.replacement import replace_model
replace_model(Path({str(run_in(work))!r}), Path({str(model_in(work))!r}))
"""
    kills = 0
    while True:
        write_model(retraining_path(run_in(work), model_in(work)), b"new")
        if not is_killed(code, kills):
            break
        finish_replacements(work)
        assert weights_of(model_in(work)) == b"new"
        assert {path.name for path in run_in(work).iterdir()} == {"fold2", "replace.lock"}
        write_model(model_in(work), b"old")
        kills += 1
    assert kills >= 3  # between any two of its renames
