"""Four logical CPU devices, so that every test run covers distributed code, and one workspace trained once for all tests."""

import importlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import wrapt
from builders import free_port
from filelock import FileLock
from stages import FEWER_DIGITS, MAIN_JOB, Workspace, new_workspace

if importlib.util.find_spec("triton"):
    importlib.import_module("triton")  # before TensorFlow; see competition/training/backend.py
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GOLDFOLD_GOALS", "")  # messages are in the words of make
LOGICAL_DEVICES = 4
# Of the `make test` that runs the tests: a make under test prints other lines inside another one.
for name in [name for name in os.environ if name.startswith("MAKE") or name == "MFLAGS"]:
    del os.environ[name]
# A background job of a shell ignores this signal, and the stages under test would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Folders and files below tests/ that start processes or compile networks; those with the longest files first.
SLOW = ("pipelines", "cluster", "test_notebook.py", "preflight", "training", "docs", "serving", "faults", "kernels")
SLOW += ("kaggle_api", "test_python_api.py", "tuning", "test_makefile.py", "storage", "ensemble")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers more than cores, because some tests wait for a time limit or a server."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first, so that all workers end at about the same time (with --no-loadscope-reorder)."""
    places = {name: place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.path.relative_to(item.config.rootpath).parts[1], len(SLOW)))
    for item in items:  # fixtures of whole stages and servers contain trainings, which are slow on a busy machine
        if item.path.relative_to(item.config.rootpath).parts[1] in ("pipelines", "faults", "serving"):
            item.add_marker(pytest.mark.timeout(7200 if item.get_closest_marker("soak") else 900))


def configure_devices(tensorflow: ModuleType) -> None:
    cpu = tensorflow.config.list_physical_devices("CPU")[0]
    parts = [tensorflow.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES
    tensorflow.config.set_logical_device_configuration(cpu, parts)


# Devices can be configured only before their first use, which may be in the test that imports TensorFlow; tests that do not
# need it do not wait for it.
wrapt.register_post_import_hook(configure_devices, "tensorflow")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Workspace:
    """The workspace that one worker makes for all; tests must not change it."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # the folder that all workers share
    folder, done = base / name, base / f"{name}.done"
    with FileLock(base / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            done.touch()
    return Workspace(folder)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace after the complete main job, shared by all workers; tests must not change it."""
    make = lambda folder: new_workspace(folder).do_in_one_process(*MAIN_JOB, code=FEWER_DIGITS)  # noqa: E731
    return made_once(tmp_path_factory, "finished", make)


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished workspace, which tests may change."""
    return finished.copy_to(tmp_path / "workspace")


@pytest.fixture
def untrained(workspace: Workspace) -> Workspace:
    shutil.rmtree(workspace.work / "members")
    return workspace


@pytest.fixture(scope="session")
def exported(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The finished workspace with its blend exported in every format that the installed packages write. Not to be changed."""
    packages = {"saved_model": "tensorflow", "onnx": "tf2onnx"}
    formats = ",".join(name for name, package in packages.items() if importlib.util.find_spec(package))
    make = lambda folder: finished.copy_to(folder).do("export", "--format", formats)  # noqa: E731
    return made_once(tmp_path_factory, "exported", make)


@pytest.fixture
def postgres() -> Iterator[str]:
    """URL of an empty database of a PostgreSQL that runs for this test on 127.0.0.1; skips the test without it."""
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    commands = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    folder = commands[-1] if commands else Path(shutil.which("initdb") or "none").parent
    if not (folder / "initdb").exists():
        pytest.skip("PostgreSQL is not installed: `apt install postgresql`")
    # PostgreSQL does not run as root; Debian's package creates a user for it.
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    place = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    port = free_port()
    try:
        if os.geteuid() == 0:
            shutil.chown(place, user)
        data, as_user = str(place / "data"), {"user": user, "cwd": place, "capture_output": True, "check": True}
        subprocess.run([folder / "initdb", "-D", data, "-U", "goldfold", "--auth=trust", "--no-sync"], **as_user)
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={place} -c fsync=off"
        start = [folder / "pg_ctl", "-D", data, "-w", "-l", str(place / "log"), "-o", options, "start"]
        subprocess.run(start, user=user, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        yield f"postgresql+psycopg://goldfold@127.0.0.1:{port}/postgres"
        subprocess.run([folder / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **as_user)
    finally:
        shutil.rmtree(place, ignore_errors=True)
