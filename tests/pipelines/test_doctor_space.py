"""`make doctor` says before a training whether the decoded images will fit."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from competition.config.params_file import load_params, parse_overrides
from competition.images import decoded_cache
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.inspect import doctor
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job, image_cache


@pytest.mark.parametrize(
    ("free", "sets", "lines"),
    [
        (30_000_000_000, "cache.disk_gigabytes=40", ["decoded images of 16 px take 0.0 GB, 29.0 GB may be used on disk"]),
        (30_000_000_000, "members.slim.image_size=4096", ["decoded images of 16 px", "of 4096 px take 30.2 GB, only 29.0 GB may be"]),
        (900_000_000, "cache.ram_gigabytes=0", ["take 0.0 GB, only 0.0 GB may be used on disk: every epoch will decode"]),
    ],
)  # fmt: skip
def test_the_doctor_says_whether_the_decoded_images_will_fit(finished, monkeypatch, free, sets, lines) -> None:
    overrides = parse_overrides(sets)
    library = LibraryWorkspace(finished.work, load_params(finished.params, overrides), overrides)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))
    monkeypatch.setattr(decoded_cache, "LEFT_FREE", 1_000_000_000)
    monkeypatch.setattr(
        "pipelines.inspect.doctor.image_cache", lambda job: replace(image_cache(job), folder=job.work / "none")
    )
    findings = list(doctor.decoded_images(Job(library, Options(), finished.submissions)))
    assert len(findings) == len(lines)
    assert all(line in finding.what and finding.unsure == ("only" in line) for line, finding in zip(lines, findings))
