from dataclasses import replace

import pytest
from builders import ROOT, params

from competition.budget.parameters import file_text, with_members
from competition.cluster import connection
from competition.cluster.project import PARAMS, local_files, write_project
from competition.config.errors import UserError
from competition.config.params_file import load_params, stated_keys


def test_the_parameters_of_a_machine_have_tuned_values_and_no_path_of_this_one(tmp_path) -> None:
    here = params("competition.source=/home/me/x cache.folder=/home/me/cache cluster.members='{cnn: {gpus: 1}}'")
    cnn = here.members["cnn"]
    tuned = replace(cnn, train=replace(cnn.train, learning_rate=0.125), tuned_folds=(0,))
    write_project(tmp_path, ROOT, here, {**here.members, "cnn": tuned})
    assert (tmp_path / "competition/cluster/node.py").is_file()
    assert (tmp_path / "pipelines/execution/cluster_child.py").is_file()
    there = load_params(tmp_path / PARAMS)
    assert stated_keys(there.members["cnn"]) == stated_keys(tuned)
    assert "/home/me" not in (tmp_path / PARAMS).read_text()
    assert there.cluster.members["cnn"] == replace(there.cluster.needs, gpus=1.0)


def test_weights_pipelines_and_what_a_study_searches_travel_from_the_project_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.weights.h5", "mine.weights.h5", "transforms.yaml"):
        (tmp_path / name).write_text("{}")
    study = "'tune.search={weights: {choices: [none, a.weights.h5]}}'"
    stated = "members.cnn.weights=mine.weights.h5 train.albumentations=transforms.yaml"
    here = params(f"{stated} prepare.external='{{more: /elsewhere}}' {study}")
    files = {"mine.weights.h5", "transforms.yaml"}
    assert local_files(here, here.members, is_tuning=False).keys() == files
    assert local_files(here, here.members, is_tuning=True).keys() == files | {"a.weights.h5"}
    here = params(f"'tune.search={{weights: {{choices: [none, {tmp_path}/a.weights.h5]}}}}'")
    with pytest.raises(UserError, match=r"tune.search.weights: .* is outside the project's folder"):
        local_files(here, here.members, is_tuning=True)


def test_without_a_cluster_the_error_says_how_to_start_one(tmp_path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (goldfold[cluster])")
    (tmp_path / "empty.txt").touch()
    message = r"CLUSTER=127\.0\.0\.1:9: no Ray cluster was reached .*`ray start --head"
    with pytest.raises(UserError, match=message), connection.connected("127.0.0.1:9", tmp_path):
        pass


def test_the_file_of_a_budget_keeps_what_its_members_need_of_a_cluster(tmp_path) -> None:
    stated = params("cluster.members='{cnn: {gpus: 1}}'")
    kept = with_members(stated, {"cnn": stated.members["cnn"]}, ("cnn",))
    (tmp_path / "budget.yaml").write_text(file_text(kept, ROOT / "params.yaml", (), {}, []))
    assert load_params(tmp_path / "budget.yaml").cluster.members == stated.cluster.members == kept.cluster.members
    assert not with_members(stated, {"other": stated.members["cnn"]}, ("other",)).cluster.members
