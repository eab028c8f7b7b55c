"""On Kaggle's images a kernel trains with suitable packages, on a TPU with the jax and libtpu that preflight verified, or says why not.

No TPU is needed here: a stand-in jax ends its process where the real one does: with a libtpu of another version than it was made for.
"""

import json
import os
import re
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


def package(name: str, version: str, module: str, code: str = "") -> dict[str, str]:
    """File -> content of an installed package or a wheel."""
    info = f"{name}-{version}.dist-info"
    return {
        f"{module}/__init__.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/top_level.txt": module,
        f"{info}/RECORD": "",
    }


def jax_packages(jax: str, libtpu: str) -> list[dict[str, str]]:
    return [package("jax", jax, "jax", JAX), package("jaxlib", jax, "jaxlib"), package("libtpu", libtpu, "libtpu")]


def run_kernel(
    folder: Path, image: list[dict[str, str]], wheels: list[dict[str, str]], plan: Plan, **environment: str
) -> str:
    """Output of a kernel without internet.  image: packages that are installed there.  wheels: of an attached dataset."""
    for name, content in (item for files in image for item in files.items()):
        (folder / "image" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "image" / name).write_text(content)
    for place in ("working", "input/wheels"):
        (folder / place).mkdir(parents=True)
    for files in wheels:
        (info,) = {Path(name).parts[0] for name in files if ".dist-info" in name}
        with zipfile.ZipFile(folder / "input" / "wheels" / f"{info[:-10]}-py3-none-any.whl", "w") as wheel:
            for path, content in files.items():
                wheel.writestr(path, content)
    (folder / "script.py").write_text(packing.pack({"a.py": b""}, plan))
    # The interpreter of the tests must not change: PIP_TARGET stands for the image's site-packages.
    paths = os.pathsep.join(str(folder / name) for name in ("site", "image"))
    variables = {"PYTHONPATH": paths, "PIP_TARGET": str(folder / "site"), "PIP_NO_INDEX": "1", **environment}
    command = [sys.executable, "../script.py"]
    options = {"cwd": folder / "working", "env": os.environ | variables, "stdout": subprocess.PIPE}
    return subprocess.run(command, **options, stderr=subprocess.STDOUT, text=True).stdout


VERIFIED, OLD = ("0.10.2", FITS["0.10.2"]), ("0.7.2", "0.0.17")
PAIR = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
NEEDS = {"PIL": "pillow>=12.3.0", "numpy": "numpy>=2.0"}
SAYS_WHAT_TRAINS = ("-c", "import jax, PIL; print('trained with jax', jax.__version__, 'and pillow', PIL.__version__)")
ON_TPU, ON_CPU = {"ISTPUVM": "1"}, {"ISTPUVM": "", "CHIPS": "1"}
OLD_PILLOW = "WARNING the image's pillow 12.1.1 is used, expected pillow>=12.3.0"


def pillow(version: str) -> dict[str, str]:
    return package("pillow", version, "PIL", f"__version__ = {version!r}")


@pytest.mark.parametrize(
    ("image", "wheels", "machine", "lines"),
    [
        (VERIFIED, None, ON_TPU, [OLD_PILLOW, "devices: tpu 8", "with jax 0.10.2 and pillow 12.1.1", "goldfold: done"]),
        # The image as it is built today: jax unpinned, libtpu forced.
        (("0.10.2", "0.0.17"), VERIFIED, ON_TPU, ["libtpu 0.0.17: exit code -6", "installing jax 0.10.2", "with jax 0.10.2"]),
        # The image works, but preflight compiled with another pair.
        (OLD, VERIFIED, ON_TPU, ["libtpu 0.0.17: not what preflight compiled with", "trained with jax 0.10.2"]),
        (OLD, ("0.10.2", "0.0.17"), ON_TPU, ["WARNING the image's jax is used, which pre", "trained with jax 0.7.2"]),
        (("0.9.1", "0.0.17"), None, ON_TPU,
         ["goldfold: failed", "8 tpu devices, found: exit code -6", "attach a dataset with its wheels"]),
        (OLD, VERIFIED, ON_CPU, ["expected 8 tpu devices, found: tpu 1"]),
    ],
    ids=["verified", "newest jax", "another pair", "broken wheels", "offline", "no TPU"],
)  # fmt: skip
def test_a_kernel_trains_with_verified_and_new_packages_or_says_why_not(tmp_path, image, wheels, machine, lines):
    """The image has an old pillow, and preflight verified jax 0.10.2. Versions of jax and libtpu in it, and as wheels with pillow."""
    plan = Plan("r", (SAYS_WHAT_TRAINS,), (), {}, NEEDS, PAIR, "tpu", 8, 600, 1)
    attached = [*jax_packages(*wheels), pillow("12.4.0")] if wheels else []
    output = run_kernel(tmp_path, [*jax_packages(*image), pillow("12.1.1")], attached, plan, **machine)
    assert [line for line in lines if line not in output] == [], output
    assert ("installing jax" in output) == (image != VERIFIED and machine is ON_TPU), output
    assert (OLD_PILLOW in output) == (wheels is None), output


def test_the_tensorflow_of_the_image_stays(tmp_path: Path) -> None:
    needs = {"tensorflow": "tensorflow-cpu>=99,<100; sys_platform != 'darwin'"}
    plan = Plan("r", (("-c", ""),), (), {}, needs, {}, "", 0, 60, 1)
    output = run_kernel(tmp_path, [], [package("tensorflow_cpu", "99.1", "tensorflow")], plan)
    assert re.search(r"WARNING the image's tensorflow.* is used, expected tensorflow-cpu>=99,<100\n", output), output
    assert not (tmp_path / "site").exists()


WRITES_TWO_RESULTS = """
import os
for name, count in (("a", 3), ("b", 1)):
    os.makedirs(f"out/{name}")
    for number in range(count):
        open(f"out/{name}/{number}.npz", "wb").write(bytes(900_000))
"""


def test_neither_a_damaged_input_nor_an_unexpected_error_nor_a_full_disk_costs_a_result_that_fits(tmp_path) -> None:
    plan = Plan("r", (("-c", WRITES_TWO_RESULTS), ("-c\0", "")), ("out/*",), {}, {}, {}, "", 0, 60, 1)
    for folder in ("input/carried", "sitecustomize"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "input" / "carried" / "goldfold-output.json").write_text("{")
    # The largest file that may be written stands for the space that is left.
    (tmp_path / "sitecustomize" / "sitecustomize.py").write_text(
        "import resource, sys\n"
        "if sys.argv[0].endswith('script.py'): resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))"
    )
    output = run_kernel(tmp_path, [], [], plan, PYTHONPATH=str(tmp_path / "sitecustomize"))
    listing = json.loads((tmp_path / "working" / "goldfold-output.json").read_text())
    assert "goldfold-output.json is damaged; it is skipped" in output
    assert [archive["result_folder"] for archive in listing["archives"]] == ["out/b"], output
    problem = "embedded null byte; out/a could not be packed: File too large"
    assert (listing["status"], listing["problem"]) == ("failed", problem)
    left = {path.name for path in (tmp_path / "working").iterdir()}
    assert left == {"goldfold-output.json", listing["archives"][0]["file"]}
