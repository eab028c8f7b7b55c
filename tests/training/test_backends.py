"""Both backends, on any number of devices, give the same losses, weights and out-of-fold probabilities."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import ROOT, free_port
from small_engines import CLASSES, EXPORTED, PARAMS, all_outcomes, pictures, save_outcomes

from competition.config.errors import UserError
from competition.ensemble.blend_weights import Blend
from competition.ensemble.chain import Chain
from competition.ensemble.decision import ARGMAX
from competition.serving.graph import ExportedChain
from competition.serving.served_models import Selection
from competition.training.checkpoint import save_arrays
from competition.training.device import choose_backend, open_device, round_up_batch

pytest.importorskip("jax", reason="the second backend needs JAX (goldfold[jax])")

CLOSE = 1e-5  # of the largest value of an array, after eight steps in float32
Cases = dict[str, dict[str, np.ndarray]]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cases]:
    """backend -> case -> name -> array; JAX, in a process of its own, also predicts with the weights that TensorFlow trained."""
    folder = tmp_path_factory.mktemp("engines")
    paths = [folder / f"{backend}.npz" for backend in ("tensorflow", "jax")]
    outcomes = all_outcomes(None, folder)
    save_outcomes(paths[0], outcomes)
    process = started([str(path) for path in reversed(paths)], {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})
    _, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    # The next process of JAX finds the programs that this one has compiled.
    assert any(file.name.startswith("jit__step") for file in folder.glob("jax.npz.programs/*-cache"))
    return {"tensorflow": outcomes, "jax": cases_in(paths[1])}


def started(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """tests/small_engines.py on JAX."""
    variables = {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", **environment}
    command = [sys.executable, str(ROOT / "tests" / "small_engines.py"), *arguments]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **variables}, **options)


def cases_in(path: Path) -> Cases:
    cases: Cases = {}
    with np.load(path) as stored:
        for key in stored.files:
            case, name = key.split("|")
            cases.setdefault(case, {})[name] = stored[key]
    return cases


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], close: float = CLOSE) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=close * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("case", ["devices1", "options", "multi", "regression", "micro_batches", "member"])
def test_tensorflow_and_jax_agree(outcomes: dict[str, Cases], case: str) -> None:
    assert_same(outcomes["jax"][case], outcomes["tensorflow"][case])


@pytest.mark.parametrize(("case", "expected"), [("devices4", "devices1"), ("micro_batches", "whole")])
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_neither_the_number_of_devices_nor_micro_batches_change_anything(outcomes, backend, case, expected) -> None:
    assert_same(outcomes[backend][case], outcomes[backend][expected])


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_views_that_are_too_large_for_one_program_are_made_apart_with_equal_bits(outcomes, backend):
    views = outcomes[backend]["views"]
    assert (views["together_programs"], views["apart_programs"]) == (1, 3)
    np.testing.assert_array_equal(views["together"], views["apart"])
    assert not np.array_equal(views["together"][:, 0], views["together"][:, 2])


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_run_stopped_within_an_epoch_and_resumed_is_bit_for_bit_the_same(outcomes, backend):
    assert_same(outcomes[backend]["resumed"], outcomes[backend]["uninterrupted"], close=0)


def test_weights_trained_on_tensorflow_predict_the_same_on_jax(outcomes: dict[str, Cases]) -> None:
    expected = outcomes["tensorflow"]["devices1"]["oof"]
    np.testing.assert_allclose(outcomes["jax"]["foreign"]["oof"], expected, rtol=0, atol=1e-6)


def test_a_model_of_jax_is_exported_with_the_probabilities_it_has_on_jax(outcomes, tmp_path):
    weights = dict(outcomes["jax"]["member"])
    expected = weights.pop("probabilities")
    save_arrays(tmp_path / "weights.npz", weights)
    chain = Chain("macro_f1", {"m": {"identity": 1.0}}, Blend("best", "mean", {"m": 1.0}), ARGMAX)
    selection = Selection("m", chain, {"m": EXPORTED}, {"m": {0: tmp_path / "weights.npz"}}, {}, False)
    chain = ExportedChain(selection, CLASSES, PARAMS.plugins)
    np.testing.assert_allclose(chain.predict([pictures()[0]])["probabilities"], expected, rtol=0, atol=CLOSE)
    assert expected.std() > 0.05  # a constant answer would prove nothing


@pytest.mark.long
def test_two_hosts_agree_decide_together_resume_from_a_common_checkpoint_and_notice_different_folds(outcomes, tmp_path):
    hosts = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": "2"}
    paths = [tmp_path / f"{n}.npz" for n in range(2)]
    running = [started([str(path)], {**hosts, "JAX_PROCESS_ID": str(n)}) for n, path in enumerate(paths)]
    try:
        for process in running:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in running:
            process.kill()
    for number, path in enumerate(paths):
        cases = cases_in(path)
        assert_same(cases["hosts"], outcomes["jax"]["devices1"])
        assert cases["decisions"]["stopped"] == 6
        assert_same(cases["resumed"], cases["whole"], close=0)
        assert f"this host trains fold {number} and others {1 - number}" in str(cases["user_error"]["message"])


TPU, KAGGLE, GPU = "/dev/accel0", {"ISTPUVM": "1"}, "/dev/nvidia0"
CUDA = {"jax", "jax-cuda13-plugin", "tensorflow-cpu"}
JAX, BOTH = {"jax", "libtpu", "tensorflow-cpu"}, {"jax", "libtpu", "tensorflow-tpu"}


@pytest.mark.parametrize(
    ("setting", "environment", "files", "packages", "backend", "cause"),
    [
        ("auto", {}, set(), JAX, "tensorflow", "neither a TPU nor"),
        ("auto", {}, {GPU}, CUDA, "jax", "only JAX"),
        ("auto", {}, {GPU}, {"jax", "jax-cuda13-plugin", "tensorflow"}, "tensorflow", "tensorflow is installed"),
        ("auto", {}, {GPU}, {"jax", "tensorflow-cpu"}, "tensorflow", "nothing that can use it is installed"),
        ("auto", {}, {TPU, GPU}, JAX, "jax", TPU),
        ("auto", KAGGLE, set(), JAX, "jax", "ISTPUVM"),
        ("auto", KAGGLE, set(), BOTH, "tensorflow", "tensorflow-tpu"),
        ("auto", KAGGLE, set(), {"tensorflow-cpu"}, "tensorflow", "nothing that can use it"),
        ("auto", {"KERAS_BACKEND": "jax"}, set(), JAX, "jax", "KERAS_BACKEND"),
        ("tensorflow", KAGGLE, {TPU}, JAX, "tensorflow", "device.backend"),
        ("jax", {"KERAS_BACKEND": "tensorflow"}, set(), JAX, "jax", "device.backend"),
    ],
)
def test_the_backend_is_chosen_by_what_can_use_the_accelerator(setting, environment, files, packages, backend, cause):
    chosen, reason = choose_backend(setting, environment, files.__contains__, packages.__contains__)
    assert chosen == backend and cause in reason


def test_an_unavailable_backend_is_an_error() -> None:
    nothing = set().__contains__
    with pytest.raises(UserError, match="JAX is not installed"):
        choose_backend("jax", {}, nothing, nothing)
    with pytest.raises(UserError, match="KERAS_BACKEND is torch"):
        choose_backend("auto", {"KERAS_BACKEND": "torch"}, nothing, nothing)


def test_a_device_below_the_required_one_is_an_error() -> None:
    with pytest.raises(UserError, match="only a cpu"):
        open_device(replace(PARAMS.device, require="tpu"))
    with pytest.raises(UserError, match="imported on tensorflow"):
        open_device(replace(PARAMS.device, backend="jax"))


@pytest.mark.parametrize(("batch", "parts", "rounded"), [(64, 8, 64), (60, 8, 64), (1, 8, 8), (33, 1, 33)])
def test_a_batch_is_rounded_up_to_a_multiple_of_its_parts(batch: int, parts: int, rounded: int) -> None:
    assert round_up_batch(batch, parts) == rounded
