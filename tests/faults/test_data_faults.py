"""Files that change between two stages: a byte of a raw image, the classes, the folds, a prediction."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from injection import KILLED, run_stage
from stages import Workspace

from competition.config.errors import UserError
from competition.ensemble.predictions import ViewPredictions


@pytest.fixture(scope="module")
def changing(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A copy of the finished workspace. Every test puts back what it changes."""
    return finished.copy_to(tmp_path_factory.mktemp("changing") / "workspace")


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def test_a_raw_file_with_one_flipped_byte_is_not_indexed(changing: Workspace) -> None:
    """A JPEG with a flipped byte decodes without an error."""
    file = max((changing.work / "raw").rglob("*.tfrec"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    with changed(file, bytes(data)):
        error = changing.refused("prepare", "--force")
    assert "1 of" in error and file.name in error and "`make download` fetches them again" in error
    assert "prepare: current" in changing.do("prepare")  # what was made before is kept


def test_other_classes_or_folds_after_training_are_other_data(changing: Workspace) -> None:
    described, index = (changing.work / "data" / name for name in ("competition.json", "index.csv"))
    content = json.loads(described.read_text())
    content["classes"] = content["classes"][::-1]
    with changed(described, json.dumps(content).encode()):
        error = changing.refused("predict")
        assert "lacks fold 0 (not trained)" in error and "differs: data: " in error
    header, first, *rows = index.read_text().splitlines(keepends=True)
    cells = first.rstrip("\n").split(",")
    cells[-1] = str((int(cells[-1]) + 1) % 3)
    with changed(index, "".join([header, ",".join(cells) + "\n", *rows]).encode()):
        assert "differs: data: " in changing.refused("predict")
    assert "current" in changing.do("predict")


def test_predictions_that_are_no_probabilities_are_named_with_file_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "members" / "cnn" / "fold2" / "oof.npz"
    path.parent.mkdir(parents=True)
    ids, probs = np.array(["a", "b", "c"]), np.full((3, 1, 4), 0.25, np.float32)
    ViewPredictions(ids, ("identity",), probs).save(path)
    probs[1, 0, 2] = np.nan
    np.savez(path, ids=ids, views=np.array(["identity"]), probs=probs)
    with pytest.raises(UserError, match=r"cnn/fold2/oof.npz: NaN in 1 row, first b; "):
        ViewPredictions.load(path)


@pytest.mark.soak
def test_a_stage_that_is_killed_before_a_rename_is_made_again(changing: Workspace) -> None:
    """Raw files, records and predictions appear complete or not at all."""
    before = changing.submission()
    cases = {
        "download": "download.before_rename:1:kill",
        "prepare": "records.before_rename:2:kill",
        "blend": "file.before_rename@*/submission.csv:1:kill",
    }
    for stage, fault in cases.items():
        killed = run_stage(changing, fault, stage, "--force")
        assert killed.code == KILLED, killed
        again = changing.do(stage)
        assert f"{stage}: current" not in again and "was killed or crashed" in again
    assert "train slim: folds 0, 1, 2 current" in changing.do("train")  # the same data as before
    assert "current" in changing.do("predict") and "blend: current" in changing.do("blend")
    assert changing.submission() == before
    lines = (changing.submissions / "ledger.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert not [path for path in changing.folder.rglob(".*") if path.is_file() and path.suffix != ".lock"]
