"""The map of the rows: what is near, which rows are drawn, and what each point says."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import competition, numbered
from PIL import Image
from threadpoolctl import threadpool_limits

from competition.prepare.prepared import Prepared
from competition.report.classes import HonestRows
from competition.report.page import PointMap
from competition.report.row_map import MOST_PICTURES, map_section
from competition.report.tsne import map_places

IDS = np.array([f"r{n:03}" for n in range(90)])
NAMES = ("ant", "bee", "cat")


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    index = pd.DataFrame({"id": IDS, "label": np.arange(len(IDS)) % 3, "part": "train"})
    return Prepared(tmp_path, competition(NAMES), index, "digest")


def scored_rows(numbers: np.ndarray, wrong: int = 4) -> HonestRows:
    """Rows of the index; the first `wrong` of them are predicted as the next class."""
    labels = numbers % 3
    predicted = np.where(np.arange(len(numbers)) < wrong, (labels + 1) % 3, labels)
    scores = np.random.default_rng(0).random((len(numbers), 3)) * 0.2
    scores[np.arange(len(numbers)), predicted] += 1
    return HonestRows(IDS[numbers], labels, predicted, scores / scores.sum(1, keepdims=True))


def point_map(section) -> PointMap:
    (block,) = section.blocks
    return block


def drawn_points(block: PointMap) -> list[tuple[str, float, float, str]]:
    """(tooltip, x, y, number of the picture or "") of every point."""
    points = []
    for attributes, tooltip in re.findall(r"<use ([^>]*)><title>([^<]*)</title>", block.drawing):
        values = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        points.append((tooltip, float(values["x"]), float(values["y"]), values.get("data-picture", "")))
    return points


def test_features_are_joined_by_id_whatever_the_order_of_the_scored_rows(prepared: Prepared) -> None:
    clusters, table = np.arange(60) % 2, np.zeros((len(IDS), 8), np.float16)
    vectors = np.random.default_rng(1).normal(size=(60, 8)) + 20 * clusters[:, None]  # noise around two distant centres
    numbers = np.random.default_rng(2).permutation(len(IDS))[:60]
    table[numbers] = vectors
    block = point_map(map_section(scored_rows(numbers), prepared, None, ("vit", table)))
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


def test_a_point_says_its_class_and_prediction_and_its_picture_is_that_of_its_id(prepared: Prepared) -> None:
    rows = scored_rows(np.arange(90)[::-1].copy())
    block = point_map(map_section(rows, prepared, numbered(90), None))
    points = drawn_points(block)
    assert len(points) == 90 and "cat predicted as ant · r089" in [text for text, *_ in points]
    assert "bee, predicted right · r001" in [text for text, *_ in points]
    for text, _, _, picture in points:
        tile, name = block.tiles[int(picture)], text.rpartition(" · ")[2]
        assert tile.lines[-1] == name
        with Image.open(io.BytesIO(base64.b64decode(tile.address.partition(",")[2]))) as image:
            assert image.getpixel((0, 0))[0] == int(name[1:])  # image n has the value n in all pixels
    assert [tile.lines[1][0] for tile in block.tiles[:4]] == ["✕"] * 4  # the wrong rows come first
    assert len({tile.address for tile in block.tiles}) == 90 <= MOST_PICTURES
    without = point_map(map_section(rows, prepared, None, None))
    assert not without.tiles and not any(picture for *_, picture in drawn_points(without))


def test_there_is_no_map_of_no_rows_or_of_rows_that_differ_in_fewer_than_two_dimensions(prepared: Prepared) -> None:
    assert map_section(scored_rows(np.arange(0)), prepared, None, None) is None
    assert map_section(scored_rows(np.arange(5)), prepared, None, None) is None
    confidence = np.linspace(0.01, 0.99, 50)[:, None]
    logs = np.log(np.hstack([confidence, 1 - confidence]))
    assert map_places(logs - logs.mean(1, keepdims=True)) is None
    assert map_places(np.ones((50, 8), np.float32)) is None
