"""Mistakes in names are reported before the download, with the file and the line or the member's name."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROOT
from stages import new_workspace

from competition.config.errors import MissingWeights, UserError
from competition.config.params_file import load_params, parse_overrides
from competition.config.validation import ARCHITECTURES
from competition.ensemble.settings import validate_params
from competition.images.augmentations import augmentation_named
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.execution.trainer import error_of_member, member_place
from pipelines.main_job import download
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job


def test_a_member_is_named_with_its_file_whatever_the_title(tmp_path: Path) -> None:
    file = tmp_path / "photos.yaml"
    file.write_text(
        f"extends: {ROOT}/params.yaml\n\nmembers:\n  wide: {{architecture: cnn, image_size: 16, alpha: 1.0, weights: none}}\n"
    )
    job = Job(LibraryWorkspace(tmp_path, load_params(file)), Options(params=file), tmp_path)
    for title in ("wide", "tune wide", "wide seed 3"):
        assert member_place(job, title) == "photos.yaml line 4: members.wide"
    assert member_place(job, "wide@1a2b3c4d") == "wide@1a2b3c4d"
    for sets, place in (
        ("members.wide.weights=absent", "SET members.wide.weights"),
        ("members.wide.train.epochs=1", "photos.yaml line 4: members.wide"),
    ):
        job = Job(LibraryWorkspace(tmp_path, load_params(file), tuple(parse_overrides(sets))), job.options, tmp_path)
        assert member_place(job, "wide") == place


def test_without_imagenet_weights_the_command_that_states_a_file_for_all_their_members_is_given(tmp_path: Path) -> None:
    file = tmp_path / "photos.yaml"
    file.write_text(f"extends: {ROOT}/recipes/own-images.yaml\n")
    job = Job(LibraryWorkspace(tmp_path, load_params(file)), Options(params=file), tmp_path)
    assert member_place(job, "rbf").startswith(f"{file}: members.rbf (of own-images.yaml line ")
    network = job.params.members["linear"]
    message = str(error_of_member(job, network, "linear", MissingWeights("no weights")))
    ready = 'SET="members.linear.weights=FILE members.rbf.weights=FILE members.mobilenet.weights=FILE"'
    assert message == f"{file}: no weights, or state its path: {ready}"
    assert "SET=" not in str(error_of_member(job, replace(network, alpha=0.25), "", MissingWeights("no weights")))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "members.slim.architecture=MobileNett",
            "SET members.slim.architecture: 'MobileNett' .*; did you mean 'MobileNet'?",
        ),
        ("members.slim.weights=absent.weights.h5", "members.slim.weights: absent.weights.h5 does not exist"),
        ("members.slim.weights=imagnet", "'imagnet' .*; did you mean 'imagenet'?"),
        (
            "members.slim.architecture=MobileNetV2 members.slim.weights=imagenet",
            "members.slim.alpha: 0.25 .* exist for 0.35",
        ),
        ("predict.views=[identity,flip_rl]", "predict.views: .*; did you mean 'flip_lr'?"),
        ("'train.augment={grayscale: 0.5}'", "train.augment: 'grayscale' is not known; did you mean 'greyscale'?"),
        ("tune.trials=1 'tune.search={architecture: {choices: [cnn, ResNet51]}}'", "tune.search: .*ResNet51"),
        ("'prepare.external={more: absent}'", "prepare.external.more: absent is not a folder"),
        ("prepare.group_by=column", "prepare.group_by: column was found .* set both"),
        ("blend.methods=[bagging]", "blend.methods: 'bagging' is not known; did you mean 'bagged'?"),
        ("decision.rules=[argmin]", "decision.rules: 'argmin' is not known; did you mean 'argmax'?"),
        ("competition.metric=macro_f", "competition.metric: 'macro_f' is not known; did you mean 'macro_f1'?"),
        ("competition.metric=f1", "competition.metric: 'f1' is not known; did you mean 'macro_f1' or "),
        ("competition.metric=zzz", "competition.metric: 'zzz' is not known; known are macro_f1, "),
        ("train.lr=0.1", "train.lr: unknown key; did you mean 'learning_rate'?"),
    ],
)
def test_every_wrong_name_is_found_before_anything_is_downloaded(tmp_path: Path, override: str, message: str) -> None:
    workspace = new_workspace(tmp_path)
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        params = validate_params(load_params(workspace.params, parse_overrides(override)))
        for augmentation in params.train.augment:
            augmentation_named(augmentation)
        download.run(Job(LibraryWorkspace(tmp_path, params), Options(params=workspace.params), tmp_path))


def test_every_network_of_keras_is_known_without_importing_keras() -> None:
    import keras

    assert set(ARCHITECTURES) - {"cnn"} == {name for name in dir(keras.applications) if name[0].isupper()}
