"""What a machine of the cluster gets."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from world import ROOT, params

from competition.cluster.project import PARAMS, data_files, packed_project
from competition.config.errors import UserError
from competition.config.params import stated_keys
from competition.config.params_file import load_params


def test_the_parameters_of_a_machine_have_tuned_values_and_no_path_of_this_one(tmp_path: Path) -> None:
    here = params("competition.source=/home/me/x cache.folder=/home/me/cache cluster.members='{cnn: {gpus: 1}}'")
    tuned = replace(
        here.members["cnn"], train=replace(here.members["cnn"].train, learning_rate=0.125), tuned_folds=(0,)
    )
    data, digest = packed_project(ROOT, here, {**here.members, "cnn": tuned})
    assert packed_project(ROOT, here, {**here.members, "cnn": tuned}) == (data, digest)
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        assert {"competition/cluster/node.py", "pipelines/cluster_child.py"} <= set(zipped.namelist())
        (tmp_path / PARAMS).write_bytes(zipped.read(PARAMS))
    there = load_params(tmp_path / PARAMS)
    assert stated_keys(there.members["cnn"]) == stated_keys(tuned)
    assert "/home/me" not in (tmp_path / PARAMS).read_text()
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


def test_records_on_gs_are_not_sent(finished) -> None:
    from competition.artifacts.manifest import read_manifest

    manifest = read_manifest(finished.work / "data" / "manifest.json")
    assert manifest is not None
    everything, without = (data_files(finished.work, manifest, is_remote) for is_remote in (False, True))
    assert {"small/data/index.csv", "small/data/manifest.json"} <= without.keys() < everything.keys()
    assert {Path(name).parent.name for name in everything.keys() - without.keys()} == {"records"}
    assert json.loads(everything["small/data/manifest.json"][1].read_text())["digest"] == manifest.digest
