"""make bench and make plan measure what training takes on this machine, and change no result."""

import json
import os

import pytest
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
def test_a_plan_measures_training_and_prediction_and_changes_no_result(workspace: Workspace) -> None:
    before = workspace.files()
    output = workspace.do("plan", "--member", "slim", "--machines", "2")
    planned = json.loads((workspace.work / "plan.json").read_text())
    cost = planned["members"]["slim"]
    assert min(cost["train"], cost["predict"]) > 0 and planned["seconds"] > cost["train"] + cost["predict"]
    assert "plan: slim: training " in output and planned["machines"]["number"] == 2
    after = workspace.files()
    assert {path: after.get(path) for path in before} == before


@pytest.mark.long
def test_bench_measures_every_part_and_changes_no_result(workspace: Workspace) -> None:
    before = workspace.files()
    ran = workspace.run("bench", "--member", "slim", code=SHORT)
    assert ran.code == 0, ran
    result = json.loads((workspace.work / "bench.json").read_text())["slim"]
    assert set(result["images_per_second"]) == {"decoded", "read", "augmented", "step", "trained"}
    assert min(result["images_per_second"].values()) > 1 and 0 <= result["waiting"] < 1
    # The images are in the cache since they were trained on, and are decoded all the same.
    assert result["images_per_second"]["decoded"] < 20 * (os.cpu_count() or 1) < result["images_per_second"]["read"]
    assert "waits for data" in ran.out and ran.out.count("images/s") == 5
    after = workspace.files()
    assert {path: after.get(path) for path in before} == before
