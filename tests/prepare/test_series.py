import numpy as np
import pandas as pd
import pytest
from photos import another_photo, digit_thumbs, scene, thumb

from competition.prepare import series
from competition.prepare.series import image_descriptors

CLASSES, SINGLES, SERIES, PHOTOS = 4, 30, 5, 4  # per class: single photos, series, photos in a series


def index_of(labels, groups=None, part="train"):
    rows = len(labels)
    groups = np.arange(rows) if groups is None else groups
    ids = [f"i{n:04}" for n in range(rows)]
    return pd.DataFrame({"id": ids, "label": labels, "part": part, "problem": "", "group": groups})


@pytest.fixture(scope="module")
def planted_series():
    """Return (index, thumbs, objects). objects: (N,) int, equal for photos of the same object."""
    thumbs, labels, objects = [], [], []
    for label in range(CLASSES):
        for number in range(SINGLES + SERIES):
            first_photo = scene(1000 * label + number)
            photos = (
                [first_photo]
                if number < SINGLES
                else [another_photo(first_photo, 10 * number + n) for n in range(PHOTOS)]
            )
            thumbs += [thumb(photo) for photo in photos]
            labels += [label] * len(photos)
            objects += [1000 * label + number] * len(photos)
    return index_of(labels), np.stack(thumbs), np.array(objects)


def test_the_planted_series_are_found_and_no_others(planted_series):
    index, thumbs, objects = planted_series
    members = series.find_series(index, image_descriptors(thumbs))
    object_of = dict(zip(index["id"], objects.tolist()))
    assert (members.assign(object=members["id"].map(object_of)).groupby("series")["object"].nunique() == 1).all()
    assert len(members) >= 0.9 * CLASSES * SERIES * PHOTOS
    assert all(object_of[row.id] == object_of[row.nearest] for row in members.itertuples())


def test_almost_no_series_are_found_in_data_without_series():
    thumbs, labels = digit_thumbs()
    members = series.find_series(index_of(labels), image_descriptors(thumbs))
    assert len(members) <= 0.004 * len(labels)


def test_a_series_contains_training_rows_of_one_class_only():
    thumbs = np.stack([thumb(scene(n)) for n in range(40)] + [thumb(another_photo(scene(0), n)) for n in range(4)])
    labels = np.r_[np.arange(40) % 2, [0, 0, 1, 1]]
    members = series.find_series(index_of(labels), image_descriptors(thumbs))
    assert len(members) and (members.groupby("series")["label"].nunique() == 1).all()
    part = np.where(np.arange(44) < 40, "train", "test")
    assert len(series.find_series(index_of(labels, part=part), image_descriptors(thumbs))) == 0


def test_duplicates_alone_are_not_a_series_but_may_belong_to_one():
    thumbs = np.stack([thumb(scene(n)) for n in range(40)] + [thumb(scene(0)), thumb(another_photo(scene(1), 5))])
    groups = np.r_[np.arange(40), 0, 41]
    descriptors = image_descriptors(thumbs)
    assert series.find_series(index_of([0] * 42, groups), descriptors)["id"].tolist() == ["i0001", "i0041"]
    groups[2] = 1  # a duplicate by its hash, although its descriptor differs
    assert series.find_series(index_of([0] * 42, groups), descriptors)["id"].tolist() == ["i0001", "i0002", "i0041"]


@pytest.mark.parametrize("rows", [0, 1, 7, 40])
def test_no_series_is_found_in_a_class_of_few_rows_or_of_identical_images(rows):
    thumbs = np.zeros((rows, 16, 16, 3), np.uint8)
    assert len(series.find_series(index_of(np.arange(rows) // 20), image_descriptors(thumbs))) == 0


def test_a_row_crosses_folds_only_if_its_series_has_rows_in_another_fold():
    crossing = series.crossing(np.array([7, 7, 9, 9, -1, -1]), np.array([0, 1, 2, 2, 0, 1]))
    assert crossing.tolist() == [True, True, False, False, False, False]
