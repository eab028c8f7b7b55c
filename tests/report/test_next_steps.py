"""The next steps, ranked by what they can gain; doubtful labels; and pictures, which come from the cache of decoded images."""

import base64
import io
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
from builders import competition, numbered
from PIL import Image

from competition.ensemble.metrics import METRICS
from competition.ensemble.significance import Difference
from competition.files.manifest import write_manifest
from competition.images.decoded_cache import cache_file
from competition.prepare.prepared import Prepared
from competition.report.classes import current_issues, dependencies_of_issues, label_issues_section
from competition.report.next_steps import blend_steps, label_steps
from competition.report.pictures import training_pixels

NAMES = ("rose", "tulip", "aster")


def rows() -> tuple[np.ndarray, ...]:
    """30 rows: three roses are taken for tulips, one aster for a rose."""
    labels = np.repeat([0, 1, 2], 10)
    predicted = labels.copy()
    predicted[:3], predicted[29] = 1, 0
    return np.array([f"i{n}" for n in range(30)]), labels, predicted, np.eye(3)[predicted]


def test_the_pair_with_most_confusions_comes_first_and_its_gain_is_that_of_perfect_rows() -> None:
    _, labels, predicted, _ = rows()
    first, second, look = label_steps(rows(), METRICS["macro_f1"], NAMES, None, False)
    assert first.what == "tell rose and tulip apart" and second.what == "tell rose and aster apart"
    better = predicted.copy()
    better[:3] = 0
    macro_f1 = METRICS["macro_f1"].evaluate
    assert first.at_most and first.gain == macro_f1(labels, better, 3) - macro_f1(labels, predicted, 3)
    assert look.what == "look for wrong labels" and look.gain is None


def test_equal_weights_are_a_step_only_where_they_are_better_by_more_than_noise() -> None:
    def scores(value: float, members: int = 2) -> dict[str, object]:
        over = Difference(value, 0.002, value - 0.004, value + 0.004, 20, 5, 15, swap_p=0.001)
        return {"members": dict.fromkeys(range(members)), "honest_rows": 300, "over_equal": asdict(over)}

    (step,) = blend_steps(scores(-0.01))
    assert step.gain == 0.01 and "+0.0100 ± 0.0020, a gain" in step.basis and "methods=[equal]" in step.command
    assert blend_steps(scores(0.01)) == blend_steps(scores(-0.001)) == blend_steps(scores(-0.01, members=1)) == []


ISSUES = "id,label,suggested,label_probability,suggested_probability\n"


def test_doubtful_labels_are_pictures_of_their_own_rows_and_only_those_of_this_blend_and_data(tmp_path: Path) -> None:
    index = pd.DataFrame({"id": ["a", "-b", "c"], "part": "train"})
    data, file = Prepared(tmp_path, competition(NAMES), index, "d"), tmp_path / "label_issues.csv"
    file.write_text(f"{ISSUES}c,rose,tulip,0.1,0.9\n'-b,aster,rose,0.21,0.5\n")
    blend, other = (write_manifest(tmp_path / f"{name}.json", {"members": name}, [], {}, {}) for name in ("a", "b"))
    write_manifest(tmp_path / "label_issues.json", dependencies_of_issues(data, blend), [file], {}, {})
    assert current_issues(tmp_path, data, other) is None
    assert current_issues(tmp_path, replace(data, digest="corrected labels"), blend) is None
    (stale,) = label_issues_section(None, True, data, None).blocks
    assert "for another blend or for other data" in stale.lines[0]
    assert label_issues_section(None, False, data, None) is None
    issues = current_issues(tmp_path, data, blend)
    text, sheet = label_issues_section(issues, True, data, numbered(3)).blocks
    assert text.lines == ["2 doubtful labels by the last `make label-issues`, the most doubtful first."]
    assert [tile.lines for tile in sheet.tiles] == [
        ["is rose 0.10", "✕ tulip 0.90", "c"],
        ["is aster 0.21", "✕ rose 0.50", "-b"],
    ]
    for tile, row in zip(sheet.tiles, (2, 1)):
        with Image.open(io.BytesIO(base64.b64decode(tile.address.partition(",")[2]))) as image:
            assert image.getpixel((0, 0)) == (row, row, row)  # image n has the value n in all pixels
    without = label_issues_section(issues, True, data, None).blocks[1]
    assert [tile.address for tile in without.tiles] == ["", ""] and "No pictures" in without.note


def test_pictures_are_those_of_the_largest_cached_size_that_a_page_shows_in_index_order(tmp_path: Path) -> None:
    ids, cache = np.array([f"id ü {n:02}" for n in range(12)]), tmp_path / "cache"
    data = Prepared(tmp_path, competition(), pd.DataFrame({"id": ids, "part": "train"}), "digest")
    cache.mkdir()
    assert training_pixels(data, [16], "squash", cache) is None
    for size in (16, 32, 256):
        np.save(cache_file(cache, data.digest, ids, size, "squash"), numbered(12, size))
    pixels = training_pixels(data, [256, 64, 32, 16], "squash", cache)
    assert pixels is not None and pixels.shape == (12, 32, 32, 3)
    assert pixels[np.array([7, 2])][:, 0, 0, 0].tolist() == [7, 2]
    assert training_pixels(data, [16], "crop", cache) is None  # other images
    file = cache_file(cache, data.digest, ids, 16, "squash")
    file.write_bytes(file.read_bytes()[:-1])
    assert training_pixels(data, [16], "squash", cache) is None
