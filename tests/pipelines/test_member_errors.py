"""A mistake in a member that only its network shows is reported with the file, the line and the member's name."""

from pathlib import Path

from builders import ROOT
from stages import Workspace

from competition.config.params_file import load_params
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job
from pipelines.terminal.trainer import member_place


def test_a_member_is_named_with_its_file_whatever_the_title(tmp_path: Path) -> None:
    file = tmp_path / "photos.yaml"
    file.write_text(
        f"extends: {ROOT}/params.yaml\n\nmembers:\n  wide: {{architecture: cnn, image_size: 16, alpha: 1.0, weights: none}}\n"
    )
    job = Job(LibraryWorkspace(tmp_path, load_params(file)), Options(params=file), tmp_path)
    for title in ("wide", "tune wide", "wide seed 3"):
        assert member_place(job, title) == "photos.yaml line 4: members.wide"
    assert member_place(job, "wide@1a2b3c4d") == "wide@1a2b3c4d"


def test_an_unknown_architecture_is_reported_with_its_member(finished: Workspace, tmp_path: Path) -> None:
    workspace = finished.copy_to(tmp_path)
    error = workspace.refused("train", "--member", "slim", sets="members.slim.architecture=MobileNett")
    assert "params.yaml line 8: members.slim: unknown architecture 'MobileNett'; did you mean 'MobileNet'?" in error
