"""prepare.group_by as used by `make prepare`, on a folder of photos with planted series."""

import pandas as pd
import pytest
from builders import params
from data_fixtures import another_photo, scene

from competition.config.errors import UserError
from competition.files.manifest import read_manifest
from competition.prepare.index import load
from competition.workspace.workspace import Workspace
from pipelines.main_job import download, prepare
from pipelines.terminal.job import Job
from pipelines.terminal.options import Options

CLASSES, SINGLES, SERIES, PHOTOS, TESTS = 2, 14, 3, 4, 50


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A source folder: train.csv names the object of each photo (single or in a series); test photos are darker."""
    folder, train, test = tmp_path_factory.mktemp("source"), ["id,label,object"], ["id"]
    for label in range(CLASSES):
        for number in range(SINGLES + SERIES):
            first_photo = scene(1000 * label + number)
            for n in range(1 if number < SINGLES else PHOTOS):
                another_photo(first_photo, 10 * number + n).save(folder / f"{label}-{number}-{n}.png")
                train.append(f"{label}-{number}-{n},{'ab'[label]},{label}-{number}")
    for n in range(TESTS):
        scene(5000 + n).point(lambda value: value // 4).save(folder / f"t{n}.png")
        test.append(f"t{n}")
    for name, lines in (("train.csv", train), ("test.csv", test)):
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def stage(source, tmp_path):
    """stage(overrides) -> the messages of `make prepare` with these parameters; its work folder is tmp_path."""

    def run(overrides="", folds_from=""):
        stated = f"competition.adapter=folder competition.source={source} competition.label_column=label"
        parameters = params(f"{stated} prepare.folds=3 {overrides}")
        job = Job(Workspace(tmp_path, parameters), Options(force=False, debug=True, folds_from=folds_from), tmp_path)
        download.run(job)
        prepare.run(job)
        return [line for line in job.echoed if line.startswith("prepare:")]

    return run


def folds_per_object(folder):
    index = load(folder / "data" / "index.csv")
    train = index[index["part"] == "train"]
    return train.groupby(train["id"].str.rsplit("-", n=1).str[0])["fold"].nunique()


def test_series_across_folds_and_unlike_test_photos_are_reported_and_grouped_if_configured(stage, tmp_path) -> None:
    lines = stage()
    assert any("WARNING test images do not look like training images" in line for line in lines)  # they are darker
    assert read_manifest(tmp_path / "data" / "manifest.json").files.keys() >= {"shift.csv", "shift.json"}
    (line,) = [line for line in lines if "may be series" in line]
    assert f"look at the contact sheet {tmp_path}/data/series.png" in line and "set prepare.group_by=embedding" in line
    assert "weak evidence" not in line
    assert (tmp_path / "data" / "series.png").is_file()
    assert folds_per_object(tmp_path).max() > 1
    by_hash = (tmp_path / "data" / "index.csv").read_bytes()

    (line,) = [line for line in stage("prepare.group_by=embedding") if "may be series" in line]
    assert "none crosses a fold" in line
    members = pd.read_csv(tmp_path / "data" / "series.csv", dtype={"id": str})
    assert len(members) >= 0.9 * CLASSES * SERIES * PHOTOS
    members["object"], nearest = (members[column].str.rsplit("-", n=1).str[0] for column in ("id", "nearest"))
    assert (members.groupby("series")["object"].nunique() == 1).all() and (members["object"] == nearest).all()
    assert folds_per_object(tmp_path)[members["object"]].max() == 1

    saved = tmp_path / "like.csv"
    load(tmp_path / "data" / "index.csv").drop(columns="sha256").to_csv(saved, index=False)
    by_series = (tmp_path / "data" / "index.csv").read_bytes()
    assert any("groups and folds as in" in line for line in stage(folds_from=str(saved)))
    assert (tmp_path / "data" / "index.csv").read_bytes() == by_series != by_hash


def test_a_group_column_keeps_its_objects_in_one_fold_and_is_no_label_or_cannot_be_used(stage, tmp_path):
    stage("prepare.group_by=column prepare.group_column=object competition.label_column=")
    assert folds_per_object(tmp_path).max() == 1
    assert len(load(tmp_path / "data" / "index.csv")["label"].unique()) == CLASSES + 1  # and -1 of the test rows
    few = r"images in 34 groups \(prepare.group_by: column object; the same photos .*\) cannot make 50 folds"
    grouped = " prepare.group_column=object"
    for change, message in (
        (f"{grouped} prepare.folds=50", rf"\d+ training {few}"),
        ("", "set both"),
        (" prepare.group_column=place", "train.csv has no column 'place'"),
        (f"{grouped} competition.label_column=lable", "no column 'lable', it has 'id', 'label', 'object'"),
        (f"{grouped} competition.label_column=object", "'object' besides prepare.group_column, it has"),
    ):
        with pytest.raises(UserError, match=message):
            stage(f"prepare.group_by=column{change}")
