"""What every adapter keeps, and what is special about digits, flowers and plants; folder has its own file."""

import io
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from competition.config.errors import UserError
from competition.data import records
from competition.data.adapters import ADAPTERS, flowers, plants
from competition.data.adapters.drawn import FLOWER_COUNTS, LEAF_COUNTS
from competition.data.competition import Competition
from competition.data.records import Record

SCALE = 0.01


@pytest.fixture(scope="module")
def miniatures(tmp_path_factory, settings):
    """The raw folders of a flower and a plant miniature, with their settings; read only."""
    made = {}
    for name, size in (("flowers", 192), ("plants", 96)):
        raw = tmp_path_factory.mktemp(name)
        told = settings(name=f"{name}-mini", adapter=name, miniature=SCALE, image_size=size)
        ADAPTERS[name].download(raw, told, None)
        made[name] = raw, told
    return made


@pytest.fixture(params=["digits", "flowers", "plants"])
def competing(request, miniatures, digits, settings):
    raw, told = (digits, settings()) if request.param == "digits" else miniatures[request.param]
    return ADAPTERS[request.param], raw, told


def test_what_an_adapter_gives_fits_together(competing):
    adapter, raw, told = competing
    described, rows = adapter.describe(raw, told), list(adapter.rows(raw, told))
    ids = [row.id for row in rows]
    assert len(set(ids)) == len(ids)
    for row in rows:
        assert (raw / row.shard).is_file()
        assert row.label == -1 if row.part == "test" else 0 <= row.label < len(described.classes)
    sample = pd.read_csv(adapter.sample(raw), dtype=str, keep_default_na=False)
    assert list(sample) == [described.id_column, *described.prediction_columns]
    assert sorted(sample[described.id_column]) == sorted(row.id for row in rows if row.part == "test")
    answers = pd.read_csv(adapter.solution(raw), dtype=str, keep_default_na=False)
    assert list(answers) == ["id", "label", "usage"]
    assert sorted(answers["id"]) == sorted(sample[described.id_column])
    assert set(answers["usage"]) == {"Public", "Private"}
    assert set(answers["label"]) <= {str(n) for n in range(len(described.classes))}


def test_the_same_seed_makes_the_same_files(competing, tmp_path):
    adapter, raw, told = competing
    adapter.download(tmp_path, told, None)
    names = sorted(path.relative_to(raw) for path in raw.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert all((raw / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)


def test_a_competition_survives_its_file(competing, tmp_path):
    adapter, raw, told = competing
    described = adapter.describe(raw, told)
    described.save(tmp_path / "competition.json")
    assert Competition.load(tmp_path / "competition.json") == described


def test_digits_are_all_there_in_uneven_shards_and_undamaged(digits, settings):
    from sklearn.datasets import load_digits

    rows = list(ADAPTERS["digits"].rows(digits, settings()))
    assert [sum(row.part == part for row in rows) for part in ("train", "test")] == [1347, 450]
    sizes = [len(list(records.read_shard(str(path), False))) for path in sorted(digits.rglob("*.tfrec"))]
    assert len(sizes) == 8 and len(set(sizes)) == 8
    pixels = [np.asarray(Image.open(io.BytesIO(row.data)))[::4, ::4] for row in rows]
    shrunk = sorted(bytes((grey * (16 / 255)).round().astype(np.uint8)) for grey in pixels)
    assert shrunk == sorted(bytes(picture.astype(np.uint8)) for picture in load_digits().images)


def test_flowers_have_the_real_folders_names_and_class_counts(miniatures):
    raw, told = miniatures["flowers"]
    rows = list(flowers.rows(raw, told))
    assert len(flowers.NAMES) == 104 and flowers.NAMES[0] == "pink primrose" and flowers.NAMES[103] == "wild rose"
    assert sum(FLOWER_COUNTS) == 12_753 and (min(FLOWER_COUNTS), max(FLOWER_COUNTS)) == (18, 782)
    counts = np.bincount([row.label for row in rows if row.part == "train"])
    assert counts.min() == 5 and counts.argmax() == np.argmax(FLOWER_COUNTS)
    assert sorted(path.name for path in raw.iterdir()) == ["private", "sample_submission.csv", "tfrecords-jpeg-192x192"]
    for part in ("train", "val", "test"):
        assert len(list((raw / "tfrecords-jpeg-192x192" / part).glob("[0-9][0-9]-192x192-*.tfrec"))) == 16
    assert Image.open(io.BytesIO(rows[0].data)).size == (192, 192)


def test_all_four_sizes_show_the_same_flowers(tmp_path):
    from competition.data.adapters import drawn

    drawn._write_flowers(tmp_path, "train", 0, [drawn.Flower("a", 3, (1,)), drawn.Flower("b", 9, (2,))], flowers.SIZES)
    found = {path.parts[-3]: list(records.read_shard(str(path), True)) for path in tmp_path.rglob("*.tfrec")}
    assert sorted(found) == sorted(f"tfrecords-jpeg-{size}x{size}" for size in flowers.SIZES)
    small = [np.asarray(Image.open(io.BytesIO(shown[0].image)).resize((48, 48)), int) for shown in found.values()]
    assert max(np.abs(one - small[0]).mean() for one in small) < 3


def test_validation_files_join_the_folds_or_stay_apart(miniatures, settings):
    raw, _ = miniatures["flowers"]
    pooled = [row.part for row in flowers.rows(raw, settings(validation="pool"))]
    apart = [row.part for row in flowers.rows(raw, settings(validation="apart"))]
    assert set(pooled) == {"train", "test"} and set(apart) == {"train", "val", "test"}
    assert pooled.count("train") == apart.count("train") + apart.count("val")


@pytest.fixture
def two_sizes(tmp_path):
    for size in (192, 512):
        for part, label in (("train", 1), ("test", None)):
            path = tmp_path / f"tfrecords-jpeg-{size}x{size}" / part / f"00-{size}x{size}-1.tfrec"
            records.write_shard(str(path), [Record(f"{part}{size}", label, b"")])
    return tmp_path


@pytest.mark.parametrize(("asked", "read"), [(0, "train512"), (192, "train192"), (512, "train512")])
def test_the_size_asked_for_is_read_and_the_largest_else(two_sizes, settings, asked, read):
    assert next(iter(flowers.rows(two_sizes, settings(image_size=asked)))).id == read


def test_what_is_not_in_the_download_is_said(two_sizes, settings, tmp_path):
    with pytest.raises(UserError, match=r"224 was asked for, the TFRecords come in \[192, 512\]"):
        list(flowers.rows(two_sizes, settings(image_size=224)))
    shutil.rmtree(two_sizes / "tfrecords-jpeg-192x192" / "test")
    with pytest.raises(UserError, match=r"tfrecords-jpeg-192x192/test holds no .tfrec"):
        list(flowers.rows(two_sizes, settings(image_size=192)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no folder like tfrecords-jpeg-224x224"):
        list(flowers.rows(tmp_path / "empty", settings()))


def test_plants_have_the_real_columns_names_and_class_counts(miniatures):
    raw, told = miniatures["plants"]
    train = pd.read_csv(raw / "train.csv")
    assert list(train) == ["image_id", "healthy", "multiple_diseases", "rust", "scab"]
    assert train["image_id"].tolist() == [f"Train_{n}" for n in range(len(train))]
    assert train.iloc[:, 1:].sum().tolist() == [max(5, round(count * SCALE)) for count in LEAF_COUNTS]
    assert Image.open(raw / "images" / "Test_0.jpg").size == (96, 64)
    described = plants.describe(raw, told)
    assert (described.metric, described.predicts) == ("mean_column_auc", "probabilities")


def test_the_real_plant_tables_are_read(real_data, tmp_path, settings):
    meta = real_data / "competition_meta" / "plant_pathology_2020"
    for name in ("train", "test", "sample_submission"):
        shutil.copy(meta / f"{name}.csv", tmp_path)
    train = pd.read_csv(meta / "train.csv", dtype=str).head(21)
    train.to_csv(tmp_path / "train.csv", index=False)
    shutil.copytree(meta / "images_512", tmp_path / "images")
    with pytest.raises(UserError, match="1,821 test images are listed but do not exist, 'Test_0'"):
        list(plants.rows(tmp_path, settings()))
    (tmp_path / "test.csv").write_text("image_id\n")
    rows = list(plants.rows(tmp_path, settings()))
    assert [row.id for row in rows] == [f"Train_{n}" for n in range(21)]
    assert [row.label for row in rows[:3]] == [3, 1, 0]
    assert rows[10].shard == "images/Train_10.jpg"


@pytest.mark.parametrize("bad", ["0,0,0,0", "1,0,1,0", "0.3,0.7,0,0", "nan,1,0,0"])
def test_rows_that_are_not_one_hot_are_refused_by_name(miniatures, settings, tmp_path, bad):
    raw, _ = miniatures["plants"]
    shutil.copytree(raw, tmp_path, dirs_exist_ok=True)
    lines = (raw / "train.csv").read_text().splitlines()
    lines[4] = f"Train_3,{bad}"
    (tmp_path / "train.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"train.csv: 1 rows are not one-hot over 'healthy'.* 'Train_3'"):
        list(plants.rows(tmp_path, settings()))


def test_files_that_are_already_here_need_no_network(miniatures, settings, world, tmp_path):
    for name, (made, _) in miniatures.items():
        raw = tmp_path / name
        raw.mkdir()
        told = settings(adapter=name, source=str(made))
        ADAPTERS[name].download(raw, told, world.no_network)
        assert [row.id for row in ADAPTERS[name].rows(raw, told)] == [row.id for row in ADAPTERS[name].rows(made, told)]
        with pytest.raises(UserError, match=f"both empty: the {name} adapter"):
            ADAPTERS[name].download(raw, settings(adapter=name), world.no_network)


def test_a_form_of_submission_the_competition_does_not_take_is_refused(competing):
    adapter, raw, told = competing
    other = "label" if adapter is plants else "probabilities"
    with pytest.raises(UserError, match=f"competition.predicts: {other} was asked for"):
        adapter.describe(raw, replace(told, predicts=other))


def test_another_competitions_tables_are_refused(tmp_path, settings):
    (tmp_path / "train.csv").write_text("image_id,rust,healthy,scab,multiple_diseases\n")
    with pytest.raises(UserError, match="is this another competition"):
        plants.describe(tmp_path, settings())
