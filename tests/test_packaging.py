"""What is installed where, and the files a stranger looks for first."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from builders import ROOT
from packaging.requirements import Requirement

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+(\s*;.*)?")


@pytest.mark.parametrize(
    ("platform", "machine", "package"),
    [("linux", "x86_64", "tensorflow-cpu"), ("linux", "aarch64", "tensorflow"), ("darwin", "arm64", "tensorflow")],
)
def test_the_extra_cpu_is_one_tensorflow_on_every_platform(platform: str, machine: str, package: str) -> None:
    extra = [Requirement(text) for text in PROJECT["project"]["optional-dependencies"]["cpu"]]
    environment = {"sys_platform": platform, "platform_machine": machine}
    assert [one.name for one in extra if one.marker is None or one.marker.evaluate(environment)] == [package]


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_constraints_are_names_and_versions_only_and_pin_every_tensorflow_alike(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    assert all(PINNED.fullmatch(line) for line in lines)
    versions = dict(line.lower().replace("_", "-").split("==") for line in lines)
    assert versions["tensorflow"] == versions["tensorflow-cpu"]


def test_beside_the_clone_the_module_is_imported_and_not_the_folder(tmp_path: Path) -> None:
    """With this package-dir an editable installation appends the project's folder to sys.path."""
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {"": "."}
    (tmp_path / "goldfold").mkdir()
    code = f"import sys; sys.path.append({str(ROOT)!r}); import goldfold; print(goldfold.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True)
    assert Path(printed.strip()) == ROOT / "goldfold.py"
