"""On Kaggle's TPU image a kernel trains with the jax and libtpu that preflight verified, or says why not; no TPU is needed here.

A stand-in jax ends its process where the real one does: with a libtpu of another version than it was made for.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from competition.kernels import packing
from competition.kernels.packing import Plan

FITS = {"0.7.2": "0.0.17", "0.9.1": "0.0.35", "0.10.2": "0.0.42.1"}  # jax -> the libtpu it runs with
JAX = f"""
import os
from importlib.metadata import version
__version__ = version("jax")
if {FITS!r}[__version__] != version("libtpu"):
    os.abort()
class numpy:
    ones = staticmethod(lambda shape: shape[0])
jit = lambda function: function
value_and_grad = lambda function: lambda side: (side**3, None)
default_backend, device_count = lambda: "tpu", lambda: int(os.environ.get("CHIPS", "8"))
"""
SAYS_WHAT_TRAINS = ("-c", "import jax; print('trained with jax', jax.__version__)")


def packages(jax: str, libtpu: str) -> dict[str, dict[str, str]]:
    """Package -> file -> content of a stand-in image."""
    contents = {"jax": (jax, JAX), "jaxlib": (jax, ""), "libtpu": (libtpu, "")}
    return {
        name: {
            f"{name}/__init__.py": code,
            f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{name}-{version}.dist-info/RECORD": "",
        }
        for name, (version, code) in contents.items()
    }


def run_kernel(folder: Path, image: tuple[str, str], wheels: tuple[str, str] | None, **environment: str) -> str:
    """Output of a kernel for which preflight verified jax 0.10.2.  wheels: jax and libtpu of an attached dataset."""
    for name, content in ((n, c) for files in packages(*image).values() for n, c in files.items()):
        (folder / "image" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "image" / name).write_text(content)
    (folder / "working").mkdir()
    (folder / "input" / "wheels").mkdir(parents=True)
    for name, files in packages(*wheels).items() if wheels else ():
        version = wheels[name == "libtpu"]
        with zipfile.ZipFile(folder / "input" / "wheels" / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for path, content in files.items():
                wheel.writestr(path, content)
    pair = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
    plan = Plan("r", (SAYS_WHAT_TRAINS,), (), {}, {}, pair, "tpu", 8, 60, 1)
    (folder / "script.py").write_text(packing.pack({"a.py": b""}, plan))
    variables = {"PYTHONPATH": str(folder / "image"), "ISTPUVM": "1", "PIP_NO_INDEX": "1", **environment}
    result = subprocess.run(
        [sys.executable, "../script.py"],
        cwd=folder / "working",
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    return result.stdout


VERIFIED = ("0.10.2", FITS["0.10.2"])


@pytest.mark.parametrize(
    ("image", "wheels", "lines"),
    [
        (VERIFIED, None, ["devices: tpu 8", "trained with jax 0.10.2", "goldfold: done"]),
        # The image as it is built today: jax unpinned, libtpu forced.
        (("0.10.2", "0.0.17"), VERIFIED, ["libtpu 0.0.17: exit code -6", "installing jax 0.10.2", "trained with jax 0.10.2"]),
        (("0.9.1", "0.0.17"), VERIFIED, ["jax 0.9.1, jaxlib 0.9.1, libtpu 0.0.17: exit code -6", "trained with jax 0.10.2"]),
        # The image works, but preflight compiled with another pair.
        (("0.7.2", "0.0.17"), VERIFIED, ["libtpu 0.0.17: not what preflight compiled with", "trained with jax 0.10.2"]),
        (("0.7.2", "0.0.17"), None, ["WARNING the image's jax is used, which preflight did not verify", "trained with jax 0.7.2"]),
        (("0.7.2", "0.0.17"), ("0.10.2", "0.0.17"), ["WARNING the image's jax is used", "trained with jax 0.7.2"]),
        (("0.9.1", "0.0.17"), None, ["goldfold: failed", "8 tpu devices, found: exit code -6", "attach a dataset with its wheels"]),
    ],
    ids=["verified", "newest jax", "newer jax", "another pair", "another offline", "broken wheels", "offline"],
)  # fmt: skip
def test_a_kernel_trains_with_the_verified_pair(tmp_path: Path, image, wheels, lines) -> None:
    output = run_kernel(tmp_path, image, wheels)
    assert [line for line in lines if line not in output] == [], output


def test_without_a_tpu_nothing_is_installed(tmp_path: Path) -> None:
    output = run_kernel(tmp_path, ("0.7.2", "0.0.17"), VERIFIED, ISTPUVM="", CHIPS="1")
    assert "installing" not in output, output
    assert "expected 8 tpu devices, found: tpu 1" in output
