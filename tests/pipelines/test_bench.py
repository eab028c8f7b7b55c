"""make bench: every part of training in images per second, and no result touched."""

import json

from stages import Place


def test_bench_tells_every_part_and_touches_nothing(place: Place) -> None:
    before = place.files()
    said = place.do("bench", "--member", "slim")
    found = json.loads((place.work / "bench.json").read_text())["slim"]
    assert set(found["images_per_second"]) == {"decoded", "read", "augmented", "step", "trained"}
    assert min(found["images_per_second"].values()) > 1 and 0 <= found["waiting"] < 1
    assert "waits for data" in said and said.count("images/s") == 5
    after = place.files()
    assert {path: after.get(path) for path in before} == before
