"""What a machine of the cluster gets."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROOT, params

from competition.cluster.project import PARAMS, data_files, packed_project
from competition.config.errors import UserError
from competition.config.params import stated_keys
from competition.config.params_file import load_params
from competition.files.manifest import sha256, write_manifest


def test_the_parameters_of_a_machine_have_tuned_values_and_no_path_of_this_one(tmp_path: Path) -> None:
    storage = "postgresql+psycopg://me:s3cret@host/studies"
    sets = f"competition.source=/home/me/x cache.folder=/home/me/cache tune.storage={storage}"
    here = params(f"{sets} cluster.members='{{cnn: {{gpus: 1}}}}'")
    tuned = replace(
        here.members["cnn"], train=replace(here.members["cnn"].train, learning_rate=0.125), tuned_folds=(0,)
    )
    data, digest = packed_project(ROOT, here, {**here.members, "cnn": tuned})
    assert packed_project(ROOT, here, {**here.members, "cnn": tuned}) == (data, digest)
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        assert {"competition/cluster/node.py", "pipelines/terminal/cluster_child.py"} <= set(zipped.namelist())
        (tmp_path / PARAMS).write_bytes(zipped.read(PARAMS))
    there = load_params(tmp_path / PARAMS)
    assert stated_keys(there.members["cnn"]) == stated_keys(tuned)
    assert "/home/me" not in (tmp_path / PARAMS).read_text() and "s3cret" not in (tmp_path / PARAMS).read_text()
    assert there.cluster.members["cnn"] == replace(there.cluster.needs, gpus=1.0)


def test_weights_travel_from_the_project_and_from_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.weights.h5").write_bytes(b"1")
    here = params("members.cnn.weights=mine.weights.h5 prepare.external='{more: /elsewhere}'")
    with zipfile.ZipFile(io.BytesIO(packed_project(ROOT, here, here.members)[0])) as zipped:
        assert zipped.read("mine.weights.h5") == b"1"
    here = params("members.cnn.weights=/tmp/mine.weights.h5")
    with pytest.raises(UserError, match="outside the project's folder, which other machines do not have"):
        packed_project(ROOT, here, here.members)


def test_the_files_of_a_study_travel_with_its_workers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("best.json", "a.weights.h5"):
        (tmp_path / name).write_text("{}")
    here = params("tune.warm_start='[earlier, best.json]' 'tune.search={weights: {choices: [none, a.weights.h5]}}'")
    for is_tuning in (False, True):
        with zipfile.ZipFile(io.BytesIO(packed_project(ROOT, here, here.members, is_tuning)[0])) as zipped:
            assert ({"best.json", "a.weights.h5"} <= set(zipped.namelist())) == is_tuning
    here = params(f"tune.warm_start='[{tmp_path}/best.json]'")
    with pytest.raises(UserError, match=r"tune.warm_start: .* is outside the project's folder"):
        packed_project(ROOT, here, here.members, is_tuning=True)


def test_records_on_gs_are_not_sent(tmp_path: Path) -> None:
    data = tmp_path / "small" / "data"
    (data / "records").mkdir(parents=True)
    files = [data / "index.csv", data / "records" / "fold0.tfrec"]
    for file in files:
        file.write_text(file.name)
    manifest = write_manifest(data / "manifest.json", {}, files, {}, {})
    everything, without = (data_files(tmp_path / "small", manifest, is_remote) for is_remote in (False, True))
    assert without.keys() == {"small/data/index.csv", "small/data/manifest.json"}
    assert everything.keys() - without.keys() == {"small/data/records/fold0.tfrec"}
    assert all(sha256(path) == digest for digest, path in everything.values())
