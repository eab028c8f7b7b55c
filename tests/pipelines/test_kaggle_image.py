"""A pushed kernel and the notebook on the packages of Kaggle's TPU image, on the CPU; the kernel also with an older and a newer jax."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT
from test_notebook import CELLS, KERNEL, variables
from test_remote_main_job import downloaded as downloaded

from competition.preflight.pairs import KAGGLE, NEWEST

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment with the packages of the image."""
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", ROOT / KAGGLE.requirements], check=True)
    return python


@pytest.fixture(params=["0.6.2", KAGGLE.jax, NEWEST.jax])
def jax_folder(request: pytest.FixtureRequest, image: Path, tmp_path: Path) -> Path:
    """A folder with one version of jax, to be put before the environment's."""
    packages = [f"{name}=={request.param}" for name in ("jax", "jaxlib")]
    folder = tmp_path / f"jax-{request.param}"
    command = [image, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}", *packages]
    subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_kernel_trains_and_predicts_on_the_packages_of_the_image(
    downloaded, image, jax_folder, backend, tmp_path, monkeypatch
):  # fmt: skip
    if backend == "tensorflow" and KAGGLE.jax not in jax_folder.name:
        pytest.skip("TensorFlow does not import jax")
    remote = downloaded.copy_to(tmp_path / "workspace")
    environment = {**remote.kaggle.kernel_environment, "PYTHONPATH": str(jax_folder), "KERAS_BACKEND": backend}
    for name, value in (("kernel_python", str(image)), ("kernel_environment", environment), ("forks_kernels", False)):
        monkeypatch.setattr(remote.kaggle, name, value)
    output = remote.do("kernel")
    assert "kernel: done after" in output and "KERAS_BACKEND is set" in output, output
    for fold in (0, 1):
        assert f"train slim: fold {fold} current" in remote.do("train", "--fold", str(fold))
        assert (remote.workspace.views("slim", fold) / "test.npz").is_file()


def test_every_cell_of_the_notebook_runs_on_the_packages_of_the_image(image: Path, tmp_path: Path) -> None:
    command = [image, "-c", KERNEL, json.dumps(CELLS)]
    ran = subprocess.run(command, cwd=tmp_path, env=variables(), capture_output=True, text=True, timeout=3000)
    assert ran.returncode == 0, f"{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
    assert "<iframe srcdoc=" in ran.stdout and "truth" in ran.stdout
    assert (tmp_path / "goldfold-notebook" / "submission.csv").read_text().startswith("id,label\n")
