"""Frozen-feature members take the whole main job; their features are computed once however many members, folds and trials use them."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from builders import ROOT
from stages import FEWER_DIGITS, MAIN_JOB, Workspace, new_workspace

from competition.config.params_file import load_params
from competition.prepare.decoding import encode_png

PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: digits}}
prepare: {{folds: 3}}
train: {{batch: 300}}
tune: {{trials: 3, members: [linear], folds: [0, 1], search: {{head.strength: {{low: 0.01, high: 10.0, log: true}}}}}}
members:
  linear: {{architecture: cnn, image_size: 16, alpha: 0.5, weights: none,
    head: {{kind: linear, views: [identity, shift_up], strengths: [0.1, 1.0]}}}}
  rbf: {{architecture: cnn, image_size: 16, alpha: 0.5, weights: none, head: {{kind: rbf}}}}
  both: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, head: {{kind: linear, also: [rbf]}}}}
predict: {{batch: 300, views: [identity, shift_up]}}
policy: {{rounds: 1}}
blend: {{rounds: 1, bags: 1}}
honest: {{resamples: 50}}
"""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    workspace = new_workspace(tmp_path_factory.mktemp("frozen"), PARAMS)
    return workspace, workspace.do_in_one_process(*MAIN_JOB, code=FEWER_DIGITS)


def test_features_are_computed_once_for_all_members_folds_and_trials_and_the_heads_are_blended(frozen) -> None:
    workspace, output = frozen
    # Two networks, train and test images; 3 members x 3 folds, and trials.
    assert output.count(" images under 2 views took ") == 4, output
    assert len(list(workspace.work.glob("features/*/features.npy"))) == 8  # of each under two views
    assert not list(workspace.work.glob("features/*/features-*.npy"))
    assert "3 trials of head.strength" in output
    assert not list(workspace.work.glob("cache/*.npy"))  # no decoded images are kept
    assert set(workspace.scores["members"]) == {"linear", "rbf", "both"}
    assert workspace.scores["honest"] > 0.85  # features of a network with random weights
    before = workspace.submission()
    again = workspace.here("tune", "train", "predict", "blend")
    assert "features of" not in again and "held-out rows" not in again
    assert workspace.submission() == before


def test_a_strength_is_adopted_without_another_study_and_trial_0_brings_the_own_ones_back(frozen, tmp_path) -> None:
    workspace = frozen[0].copy_to(tmp_path)
    before = load_params(workspace.params).members["linear"]
    (best,) = (json.loads(path.read_text()) for path in workspace.work.glob("tune/linear/*/best.json"))
    workspace.here("adopt", trial="linear:2")
    adopted = load_params(workspace.params).members["linear"]
    assert adopted.head.strengths == (best["tried"]["2"]["head.strength"],)
    assert "tune linear: current" in workspace.here("tune")
    assert "members.linear.head.strengths: [0.1, 1.0]" in workspace.here("adopt", trial="linear:0")
    assert load_params(workspace.params).members["linear"] == replace(before, tuned_folds=(0, 1))


def test_other_folds_use_the_features_that_are_stored(frozen, tmp_path) -> None:
    workspace, sets = frozen[0].copy_to(tmp_path), "prepare.folds=4 tune.trials=0"
    output = workspace.do_in_one_process("prepare", "train", "predict", arguments=["--set", sets])
    assert "train rbf fold 3" in output and " images under " not in output


def test_a_member_whose_weights_are_missing_leaves_no_run_and_a_stored_one_takes_no_features_of_other_networks(frozen):
    workspace = frozen[0]
    absent = "{architecture: cnn, image_size: 16, alpha: 0.5, weights: absent.weights.h5, head: {kind: rbf}}"
    assert "SET members.absent" in workspace.refused("train", "--member", "absent", sets=f"'members.absent={absent}'")
    assert not (workspace.work / "members" / "absent").exists()
    (run,) = workspace.work.glob("members/both/*")
    sets = f"blend.members=[both@{run.name}] members.rbf.alpha=0.25 predict.views=[identity,shift_down]"
    assert "features of other networks than those that head.also names now" in workspace.refused("predict", sets=sets)


def test_a_wrong_head_is_refused_before_anything_is_computed(frozen) -> None:
    for change, sentence in (
        ("members.linear.head.kind=svm", "'linear', 'rbf', 'mlp' or 'neighbours'"),
        ("members.rbf.teacher=[linear]", "a member with a head is fitted to labels alone"),
        ("members.rbf.head.strengths=[0]", "greater than 0"),
    ):
        assert sentence in frozen[0].refused_here("train", change)


def test_columns_of_the_tables_decide_where_the_photos_say_nothing_and_a_changed_one_is_another_run(tmp_path) -> None:
    noise, photos = np.random.default_rng(0), tmp_path / "photos"
    photos.mkdir()
    for number in range(60):
        (photos / f"{number}.png").write_bytes(encode_png(noise.integers(0, 256, (16, 16, 3), np.uint8)))
    names = [f"{n}.png" for n in range(60)]
    table = pd.DataFrame({"image": names, "label": ["a", "b", "c"] * 20, "site": ["x", "y", "z"] * 20})
    table[:45].to_csv(photos / "train.csv", index=False)
    table[45:].drop(columns="label").to_csv(photos / "test.csv", index=False)
    workspace = new_workspace(
        tmp_path,
        f"extends: {ROOT}/params.yaml\ncompetition: {{name: small, adapter: folder, source: {photos}}}\nprepare: {{folds: 3}}\n"
        "members:\n  sited: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none, "
        "head: {kind: linear, strengths: [1.0], columns: [site]}}\n"
        "predict: {batch: 16, views: [identity]}\nhonest: {resamples: 50}\n",
    )
    output = workspace.do_in_one_process("download", "prepare", "resolve", "train", "predict", "blend")
    assert "head.columns of a member can add 'site' to its features" in output
    assert workspace.scores["honest"] > 0.9
    refused = workspace.refused("predict_folder", "--folder", str(photos))
    assert "columns of tables beside the features of photos" in refused
    columns = workspace.work / "data" / "columns.csv"
    columns.write_text(columns.read_text().replace("z", "x"))
    assert workspace.do("train").count("held-out rows") == 3
