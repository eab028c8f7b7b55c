"""make bench measures every part of training in images per second and changes no result."""

import json

from stages import Workspace

SHORT = "from competition.training import bench; bench.MEASURED_SECONDS = 0.5"


def test_bench_measures_every_part_and_changes_no_result(workspace: Workspace) -> None:
    before = workspace.files()
    ran = workspace.run("bench", "--member", "slim", code=SHORT)
    assert ran.code == 0, ran
    result = json.loads((workspace.work / "bench.json").read_text())["slim"]
    assert set(result["images_per_second"]) == {"decoded", "read", "augmented", "step", "trained"}
    assert min(result["images_per_second"].values()) > 1 and 0 <= result["waiting"] < 1
    assert "waits for data" in ran.out and ran.out.count("images/s") == 5
    after = workspace.files()
    assert {path: after.get(path) for path in before} == before
