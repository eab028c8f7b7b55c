"""Properties of every adapter, and of digits, flowers and plants; test_folder.py tests the folder adapter."""

import io
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from builders import files_below
from PIL import Image
from sklearn.datasets import load_digits

from competition.config.errors import UserError
from competition.prepare import record_files
from competition.prepare.adapter_types import SAMPLE, SOLUTION
from competition.prepare.adapters import ADAPTERS, flowers, plants
from competition.prepare.tfrecord_format import Record

# Adapter -> its settings, of a small copy where the competition is large.
CASES = {
    "digits": {},
    "noisy_digits": {},
    "flowers": {"miniature": 0.006, "image_size": 24},
    "plants": {"miniature": 0.01, "image_size": 96},
}


@pytest.fixture(scope="module", params=CASES)
def adapter_case(request, tmp_path_factory, make_settings):
    """(adapter, raw folder, settings); tests must not change the folder."""
    name = request.param
    raw, settings = tmp_path_factory.mktemp(name), make_settings(name=f"{name}-small", adapter=name, **CASES[name])
    ADAPTERS[name].download(raw, settings, None)
    return ADAPTERS[name], raw, settings


def test_the_files_of_an_adapter_are_consistent_and_the_same_seed_makes_them_again(adapter_case, tmp_path):
    adapter, raw, settings = adapter_case
    described, rows = adapter.describe(raw, settings), list(adapter.rows(raw, settings))
    ids = [row.id for row in rows]
    assert len(set(ids)) == len(ids)
    for row in rows:
        assert (raw / row.shard).is_file()
        assert row.label == -1 if row.part == "test" else 0 <= row.label < len(described.classes)
    sample = pd.read_csv(raw / SAMPLE, dtype=str, keep_default_na=False)
    assert list(sample) == [described.id_column, *described.prediction_columns]
    assert sorted(sample[described.id_column]) == sorted(row.id for row in rows if row.part == "test")
    answers = pd.read_csv(raw / SOLUTION, dtype=str, keep_default_na=False)
    assert list(answers) == ["id", "label", "usage"]
    assert sorted(answers["id"]) == sorted(sample[described.id_column])
    assert set(answers["usage"]) == {"Public", "Private"}
    assert set(answers["label"]) <= {str(n) for n in range(len(described.classes))}

    adapter.download(tmp_path, settings, None)
    assert files_below(tmp_path) == files_below(raw)


def test_digits_are_complete_and_undamaged_in_shards_of_different_sizes(digits, make_settings):
    rows = list(ADAPTERS["digits"].rows(digits, make_settings()))
    assert [sum(row.part == part for row in rows) for part in ("train", "test")] == [1347, 450]
    sizes = [len(list(record_files.read_shard(str(path), False))) for path in sorted(digits.rglob("*.tfrec"))]
    assert len(sizes) == 8 and len(set(sizes)) == 8
    pixels = [np.asarray(Image.open(io.BytesIO(row.data)))[::4, ::4] for row in rows]
    restored = sorted(bytes((pixel_values * (16 / 255)).round().astype(np.uint8)) for pixel_values in pixels)
    assert restored == sorted(bytes(image.astype(np.uint8)) for image in load_digits().images)


def test_the_configured_size_is_read_or_the_largest_and_missing_sizes_and_parts_are_errors(tmp_path, make_settings):
    for size in (192, 512):
        for part, label in (("train", 1), ("test", None)):
            path = tmp_path / f"tfrecords-jpeg-{size}x{size}" / part / f"00-{size}x{size}-1.tfrec"
            record_files.write_shard(str(path), [Record(f"{part}{size}", label, b"")])
    for image_size, expected_id in ((0, "train512"), (192, "train192"), (512, "train512")):
        assert next(iter(flowers.rows(tmp_path, make_settings(image_size=image_size)))).id == expected_id
    with pytest.raises(UserError, match=r"224 was found, expected one of \[192, 512\]"):
        list(flowers.rows(tmp_path, make_settings(image_size=224)))
    shutil.rmtree(tmp_path / "tfrecords-jpeg-192x192" / "test")
    with pytest.raises(UserError, match=r"tfrecords-jpeg-192x192/test holds no .tfrec"):
        list(flowers.rows(tmp_path, make_settings(image_size=192)))


def test_rows_that_are_not_one_hot_are_an_error_with_their_ids(tmp_path, make_settings):
    (tmp_path / "test.csv").write_text("image_id\n")
    (tmp_path / "sample_submission.csv").write_text("image_id,healthy,multiple_diseases,rust,scab\n")
    for values in ("1,0,1,0", "nan,1,0,0"):
        lines = "image_id,healthy,multiple_diseases,rust,scab", "Train_2,0,1,0,0", f"Train_3,{values}"
        (tmp_path / "train.csv").write_text("\n".join(lines))
        with pytest.raises(UserError, match=r"train.csv: 1 row not one-hot over 'healthy'.* 'Train_3'"):
            list(plants.rows(tmp_path, make_settings()))


def test_a_prediction_type_or_target_that_the_competition_does_not_have_is_an_error(adapter_case):
    adapter, raw, settings = adapter_case
    unsupported = "label" if adapter is plants else "probabilities"
    with pytest.raises(UserError, match=f"competition.predicts: {unsupported} was asked for"):
        adapter.describe(raw, replace(settings, predicts=unsupported))
    with pytest.raises(UserError, match=r"target: multi was found; leave it empty"):
        adapter.describe(raw, replace(settings, target="multi"))
