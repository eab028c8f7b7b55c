"""Mistakes in names are reported before the download, with the file and the line or the member's name."""

from pathlib import Path

import pytest
from builders import ROOT
from stages import new_workspace

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.config.validation import ARCHITECTURES
from competition.ensemble.settings import validate_params
from competition.images.augmentations import augmentation_named
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.execution.trainer import member_place
from pipelines.main_job import download
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job


def test_a_member_is_named_with_its_file_or_the_override_that_set_it(tmp_path: Path) -> None:
    file, network = tmp_path / "photos.yaml", "{architecture: cnn, image_size: 16, alpha: 1.0, weights: none}"
    file.write_text(f"extends: {ROOT}/params.yaml\n\nmembers:\n  wide: {network}\n")
    for sets, title, place in (
        ("", "tune wide", "photos.yaml line 4: members.wide"),
        ("", "wide@1a2b3c4d", "wide@1a2b3c4d"),
        ("members.wide.weights=absent", "wide", "SET members.wide.weights"),
    ):
        workspace = LibraryWorkspace(tmp_path, load_params(file), tuple(parse_overrides(sets)))
        assert member_place(Job(workspace, Options(params=file), tmp_path), title) == place


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "members.slim.architecture=MobileNett",
            "SET members.slim.architecture: 'MobileNett' .*; did you mean 'MobileNet'?",
        ),
        ("members.slim.weights=absent.weights.h5", "members.slim.weights: absent.weights.h5 does not exist"),
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
        ("competition.metric=zzz", "competition.metric: 'zzz' is not known; known are macro_f1, "),
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
