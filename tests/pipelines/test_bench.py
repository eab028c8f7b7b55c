"""make bench measures every part of training in images per second and changes no result."""

import json

from stages import Workspace


def test_bench_measures_every_part_and_changes_no_result(place: Workspace) -> None:
    before = place.files()
    output = place.do("bench", "--member", "slim")
    result = json.loads((place.work / "bench.json").read_text())["slim"]
    assert set(result["images_per_second"]) == {"decoded", "read", "augmented", "step", "trained"}
    assert min(result["images_per_second"].values()) > 1 and 0 <= result["waiting"] < 1
    assert "waits for data" in output and output.count("images/s") == 5
    after = place.files()
    assert {path: after.get(path) for path in before} == before
