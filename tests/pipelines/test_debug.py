"""DEBUG=1 draws the first batch and the worst predictions and changes no result."""

import re
from pathlib import Path

import pytest
from PIL import Image
from stages import Workspace, new_workspace


@pytest.mark.long
def test_debug_draws_the_first_batch_and_the_worst_images_and_changes_no_result(workspace: Workspace) -> None:
    before = workspace.files()
    arguments = ("--debug", "--member", "slim", "--fold", "1", "--debug-rows", "40")
    ran = workspace.run("debug", *arguments, TF_ENABLE_ONEDNN_OPTS="1")
    assert ran.code == 0
    # No start-up lines of TensorFlow.
    assert not re.search(r"absl|port\.cc|oneDNN|^[IWE]\d{4} ", ran.out + ran.err, re.MULTILINE)
    for name in ("slim-fold1-batch.png", "slim-fold1-worst.png"):
        with Image.open(workspace.work / "debug" / name) as sheet:
            assert min(sheet.size) > 100 and len(set(sheet.convert("L").getdata())) > 10  # not a blank image
    after = workspace.files()
    assert {path: after.get(path) for path in before} == before


def test_debug_rows_without_debug_are_refused(tmp_path: Path) -> None:
    refused = new_workspace(tmp_path).run("train", "--debug-rows", "40")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "goldfold: DEBUG_ROWS=40 without DEBUG=1 has no effect: `make train DEBUG=1`\n"
