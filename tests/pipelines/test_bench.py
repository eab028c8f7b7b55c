"""`make plan`, `make bench` and `make train DEBUG=1` look at training on this machine, and change no result."""

import json
import os
import re

import pytest
from PIL import Image
from stages import Workspace

# Decoding takes at least 50 ms, so that a rate above 20 images per second and thread is one of other work.
SHORT = """
import time
from competition.images import stream
from competition.training import bench
bench.MEASURED_SECONDS = 0.2
decode = stream.decode_record
stream.decode_record = lambda *record: time.sleep(0.05) or decode(*record)
"""


@pytest.mark.long
def test_plan_bench_and_debug_measure_and_draw_and_change_no_result(workspace: Workspace) -> None:
    before = workspace.files()
    output = workspace.do("plan", "--member", "slim", "--machines", "2")
    planned = json.loads((workspace.work / "plan.json").read_text())
    cost = planned["members"]["slim"]
    assert min(cost["train"], cost["predict"]) > 0 and planned["seconds"] > cost["train"] + cost["predict"]
    assert "plan: slim: training " in output and planned["machines"]["number"] == 2

    ran = workspace.run("bench", "--member", "slim", code=SHORT)
    assert ran.code == 0 and "waits for data" in ran.out, ran
    result = json.loads((workspace.work / "bench.json").read_text())["slim"]
    assert set(result["images_per_second"]) == {"decoded", "read", "augmented", "step", "trained"}
    assert min(result["images_per_second"].values()) > 1 and 0 <= result["waiting"] < 1
    # The images are in the cache since they were trained on, and are decoded all the same.
    assert result["images_per_second"]["decoded"] < 20 * (os.cpu_count() or 1) < result["images_per_second"]["read"]

    arguments = ("--debug", "--member", "slim", "--fold", "1", "--debug-rows", "40")
    ran = workspace.run("debug", *arguments, TF_ENABLE_ONEDNN_OPTS="1")
    # No start-up lines of TensorFlow.
    assert ran.code == 0 and not re.search(r"absl|port\.cc|oneDNN|^[IWE]\d{4} ", ran.out + ran.err, re.MULTILINE)
    for name in ("slim-fold1-batch.png", "slim-fold1-worst.png"):
        with Image.open(workspace.work / "debug" / name) as sheet:
            assert min(sheet.size) > 100 and len(set(sheet.convert("L").getdata())) > 10  # not a blank image
    after = workspace.files()
    assert {path: after.get(path) for path in before} == before
