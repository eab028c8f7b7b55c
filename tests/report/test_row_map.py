"""What the report shows of single rows: their map, doubtful labels and pictures."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from builders import competition, numbered
from PIL import Image
from threadpoolctl import threadpool_limits

from competition.files.manifest import write_manifest
from competition.input_pipeline.decoded_cache import cache_file
from competition.prepare.prepared import Prepared
from competition.report.classes import ISSUES_SHEET, HonestRows, label_issues_section
from competition.report.page import PointMap
from competition.report.pictures import contact_sheet, training_pixels
from competition.report.row_map import MOST_PICTURES, map_places, map_section

IDS = np.array([f"r{n:03}" for n in range(90)])
INDEX = pd.DataFrame({"id": IDS, "label": np.arange(len(IDS)) % 3, "part": "train"})
NAMES = ("rose", "tulip", "aster")
PREPARED = Prepared(Path(), competition(NAMES), INDEX, "digest")


def scored_rows(numbers: np.ndarray, wrong: int = 4) -> HonestRows:
    """Rows of the index; the first `wrong` of them are predicted as the next class."""
    labels = numbers % 3
    predicted = np.where(np.arange(len(numbers)) < wrong, (labels + 1) % 3, labels)
    scores = np.random.default_rng(0).random((len(numbers), 3)) * 0.2
    scores[np.arange(len(numbers)), predicted] += 1
    return HonestRows(IDS[numbers], labels, predicted, scores / scores.sum(1, keepdims=True))


def drawn_points(block: PointMap) -> list[tuple[str, float, float, str]]:
    """(tooltip, x, y, number of the picture or "") of every point."""
    points = []
    for attributes, tooltip in re.findall(r"<circle ([^>]*)><title>([^<]*)</title>", block.drawing):
        values = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        points.append((tooltip, float(values["cx"]), float(values["cy"]), values.get("data-picture", "")))
    return points


def test_features_are_joined_by_id_whatever_the_order_of_the_scored_rows() -> None:
    clusters, table = np.arange(60) % 2, np.zeros((len(IDS), 8), np.float16)
    vectors = np.random.default_rng(1).normal(size=(60, 8)) + 20 * clusters[:, None]  # noise around two distant centres
    numbers = np.random.default_rng(2).permutation(len(IDS))[:60]
    table[numbers] = vectors
    (block,) = map_section(scored_rows(numbers), PREPARED, None, ("vit", table)).blocks
    cluster_of_id = dict(zip(IDS[numbers], clusters, strict=True))
    points = drawn_points(block)
    assert len(points) == 60 and "frozen network of vit" in block.note
    places = np.array([[x, y] for _, x, y, _ in points])
    drawn_clusters = np.array([cluster_of_id[text.rpartition(" · ")[2]] for text, *_ in points])
    distances = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(60, np.inf))
    assert (drawn_clusters[distances.argmin(1)] == drawn_clusters).all()  # the nearest point is of the same cluster


def test_the_places_do_not_depend_on_the_number_of_processors() -> None:
    vectors, places = np.random.default_rng(0).normal(size=(150, 600)).astype(np.float32), []
    for threads in (1, 2):
        with threadpool_limits(threads):
            places.append(map_places(vectors))
    assert np.array_equal(*places)


def test_a_point_says_its_class_and_prediction_and_its_picture_is_that_of_its_id() -> None:
    rows = scored_rows(np.arange(90)[::-1].copy())
    (block,) = map_section(rows, PREPARED, numbered(90), None).blocks
    points = drawn_points(block)
    assert len(points) == 90 and "aster predicted as rose · r089" in [text for text, *_ in points]
    assert "tulip, predicted right · r001" in [text for text, *_ in points]
    for text, _, _, picture in points:
        tile, name = block.tiles[int(picture)], text.rpartition(" · ")[2]
        assert tile.lines[-1] == name
        with Image.open(io.BytesIO(base64.b64decode(tile.address.partition(",")[2]))) as image:
            assert image.getpixel((0, 0))[0] == int(name[1:])  # image n has the value n in all pixels
    assert [tile.lines[1][0] for tile in block.tiles[:4]] == ["✕"] * 4  # the wrong rows come first
    assert len({tile.address for tile in block.tiles}) == 90 <= MOST_PICTURES
    (without,) = map_section(rows, PREPARED, None, None).blocks
    assert not without.tiles and not any(picture for *_, picture in drawn_points(without))


def test_there_is_no_map_of_no_rows_or_of_rows_that_differ_in_fewer_than_two_dimensions() -> None:
    assert map_section(scored_rows(np.arange(0)), PREPARED, None, None) is None
    assert map_section(scored_rows(np.arange(5)), PREPARED, None, None) is None
    confidence = np.linspace(0.01, 0.99, 50)[:, None]
    logs = np.log(np.hstack([confidence, 1 - confidence]))
    assert map_places(logs - logs.mean(1, keepdims=True)) is None
    assert map_places(np.ones((50, 8), np.float32)) is None


def test_doubtful_labels_are_only_those_of_this_blend_and_data(tmp_path: Path) -> None:
    data = Prepared(tmp_path, competition(NAMES), INDEX, "d")
    blend, other = (write_manifest(tmp_path / f"{name}.json", {"members": name}, [], {}, {}) for name in ("a", "b"))
    assert label_issues_section(tmp_path, data, blend) is None
    contact_sheet(numbered(2), ["a", "b"], tmp_path / ISSUES_SHEET)
    depends = {"blend": blend.digest, "data": data.digest}
    write_manifest(tmp_path / "label_issues.json", depends, [], {"issues": 2}, {})
    for changed, made_for in ((data, other), (replace(data, digest="corrected labels"), blend)):
        (stale,) = label_issues_section(tmp_path, changed, made_for).blocks
        assert "for another blend or for other data" in stale.lines[0]
    count, sheet = label_issues_section(tmp_path, data, blend).blocks
    assert count.lines[0].startswith("2 doubtful labels") and sheet.address.startswith("data:image/jpeg;base64,")


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
