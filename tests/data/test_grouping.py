"""prepare.group_by through the stage itself, on a folder of photos with planted series."""

import pandas as pd
import pytest
from photos import another_photo, scene
from world import params

from competition.artifacts.manifest import read_manifest
from competition.config.errors import UserError
from competition.data.competition import Settings
from competition.data.index import load
from pipelines import download, prepare
from pipelines.runner import Job, Options

CLASSES, ALONE, SERIES, PHOTOS, TESTS = 2, 14, 4, 4, 50


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """train.csv with the object that each photo is of: some alone, some in series; test photos from a darker place."""
    folder, lines, tests = tmp_path_factory.mktemp("source"), ["id,label,object"], ["id"]
    for label in range(CLASSES):
        for number in range(ALONE + SERIES):
            one = f"{label}-{number}"
            taken = scene(1000 * label + number)
            for n in range(1 if number < ALONE else PHOTOS):
                another_photo(taken, 10 * number + n).save(folder / f"{one}-{n}.png")
                lines.append(f"{one}-{n},{'ab'[label]},{one}")
    for n in range(TESTS):
        scene(5000 + n).point(lambda value: value // 4).save(folder / f"t{n}.png")
        tests.append(f"t{n}")
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    (folder / "test.csv").write_text("\n".join(tests) + "\n")
    return folder


@pytest.fixture
def stage(source, tmp_path):
    """stage(overrides) -> what `make download` with these parameters says; its work folder is tmp_path."""

    def run(overrides="", like="", **options):
        chosen = params(
            f"competition.adapter=folder competition.source={source} prepare.folds=3 "
            f"competition.label_column=label {overrides}"
        )
        told = Options(force=False, debug=True, like=like, **options)
        job = Job(chosen, (), told, tmp_path, tmp_path)
        download.run(job)
        prepare.run(job)
        return [line for line in job.echoed if line.startswith("prepare:")]

    return run


def folds_per_object(folder):
    index = load(folder / "data" / "index.csv")
    train = index[index["part"] == "train"]
    return train.groupby(train["id"].str.rsplit("-", n=1).str[0])["fold"].nunique()


def test_series_across_folds_are_told_in_one_line_with_a_contact_sheet_and_kept_together_when_asked(stage, tmp_path):
    (line,) = [line for line in stage() if "series" in line]
    assert "set prepare.group_by=embedding; contact sheet data/series.png" in line
    assert (tmp_path / "data" / "series.png").is_file()
    assert folds_per_object(tmp_path).max() > 1
    by_hash = (tmp_path / "data" / "index.csv").read_bytes()

    (line,) = [line for line in stage("prepare.group_by=embedding") if "series" in line]
    assert "none crosses a fold" in line
    members = pd.read_csv(tmp_path / "data" / "series.csv", dtype={"id": str})
    assert len(members) >= 0.9 * CLASSES * SERIES * PHOTOS
    assert folds_per_object(tmp_path)[members["id"].str.rsplit("-", n=1).str[0]].max() == 1

    saved = tmp_path / "like.csv"
    load(tmp_path / "data" / "index.csv").drop(columns="sha256").to_csv(saved, index=False)
    by_series = (tmp_path / "data" / "index.csv").read_bytes()
    assert any("groups and folds as in" in line for line in stage(like=str(saved)))
    assert (tmp_path / "data" / "index.csv").read_bytes() == by_series != by_hash


def test_a_column_keeps_its_objects_in_one_fold_and_is_no_label(stage, tmp_path):
    stage("prepare.group_by=column prepare.group_column=object competition.label_column=")
    assert folds_per_object(tmp_path).max() == 1
    assert len(load(tmp_path / "data" / "index.csv")["label"].unique()) == CLASSES + 1  # and -1 of the test rows


def test_test_photos_from_elsewhere_are_told(stage, tmp_path):
    assert any("WARNING test images do not look like training images" in line for line in stage())
    assert (tmp_path / "data" / "shift.png").is_file()
    assert read_manifest(tmp_path / "data" / "manifest.json").files.keys() >= {"shift.csv", "shift.json", "shift.png"}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("prepare.group_by=column", "set both"),
        ("prepare.group_column=object", "set both"),
        ("prepare.group_by=column prepare.group_column=place", "train.csv has no column 'place'"),
    ],
)
def test_a_group_column_that_cannot_be_used_is_refused(stage, overrides, says):
    with pytest.raises(UserError, match=says):
        stage(overrides)


def test_raw_files_of_before_are_current_whatever_groups_the_folds():
    told = {"name": "n", "adapter": "folder", "slug": "", "source": "", "image_size": 0, "validation": "pool"}
    told |= {"id_column": "", "label_column": "", "metric": "", "predicts": "", "miniature": 0, "seed": 1}
    assert Settings(**told, group_column="object").of_raw_files() == told
