"""Four logical CPU devices, so that every test run covers distributed code, and one workspace trained once for all tests."""

import importlib
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import wrapt
from filelock import FileLock
from postgres import postgres  # noqa: F401
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
SLOW = ("pipelines", "cluster", "test_notebook.py", "preflight", "training", "docs", "serving", "faults", "storage")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers more than cores, because some tests wait for a time limit or a server."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first, so that all workers end at about the same time (with --no-loadscope-reorder).

    Tests of whole stages and of servers get a longer time limit: their fixtures contain complete training runs, which
    are slow on a busy machine.
    """
    places = {name: place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.path.relative_to(item.config.rootpath).parts[1], len(SLOW)))
    for item in items:
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
    """The finished workspace without its fold models."""
    shutil.rmtree(workspace.work / "members")
    return workspace


@pytest.fixture(scope="session")
def exported(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The finished workspace with its blend exported in every format that the installed packages write. Not to be changed."""
    packages = {"saved_model": "tensorflow", "onnx": "tf2onnx", "litert": "ai_edge_litert"}
    formats = ",".join(name for name, package in packages.items() if importlib.util.find_spec(package))
    make = lambda folder: finished.copy_to(folder).do("export", "--format", formats)  # noqa: E731
    return made_once(tmp_path_factory, "exported", make)
