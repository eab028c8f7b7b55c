"""Preflight with the real compiler for absent TPUs. Needs jax and libtpu (`make test-preflight`); takes 1 to 2 minutes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.config.plugins import NO_PLUGINS, activate, load_plugins
from competition.preflight import answers as preflight
from competition.preflight import compiling
from competition.preflight.answers import run_preflight
from competition.preflight.batch_search import largest_batch
from competition.preflight.child import step_result
from competition.preflight.compiling import Compiled
from competition.preflight.lowering import Part, Shapes, Unsupported
from competition.preflight.request import PreflightRequest, PreflightResult, compiled_in
from competition.preflight.topology import topology_named

ROOT = Path(__file__).parents[2]
PARAMS = load_params(ROOT / "params.yaml")
CNN = replace(PARAMS.members["cnn"], image_size=16)
LIMIT = 600.0
with_libtpu = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="libtpu is not installed; make test-preflight installs it"
)


def silent(activity: str) -> None:
    pass


def preflight_request(
    topology: str, backend: str, batch: int, mode: str = "compile", size: int = 16
) -> PreflightRequest:
    tpu = topology_named(topology)
    shapes = Shapes(10, tpu.devices, batch, 16 * tpu.devices, ("identity", "shift_up"))
    return PreflightRequest(replace(CNN, image_size=size), shapes, tpu, backend, mode)


@pytest.mark.timeout(600)
@with_libtpu
@pytest.mark.parametrize(
    ("topology", "backend"), [("v3-8", "tensorflow"), ("v5e-8", "jax"), ("v3-8", "jax"), ("v5e-8", "tensorflow")]
)
def test_both_steps_compile_on_both_backends(topology: str, backend: str, tmp_path: Path) -> None:
    request = preflight_request(topology, backend, 64)
    results = run_preflight(request, ["train", "predict"], tmp_path, silent, LIMIT)
    for step, batch in (("train", 64), ("predict", 128)):
        result = results[step]
        assert (result.verdict, result.batch, result.message) == ("fits", batch, "")
        assert 0 < result.memory < result.limit and result.flops > 0 and result.moved > 0 and result.roofline > 0


def test_the_users_models_views_and_augmentations_are_known_in_the_child_process(tmp_path: Path) -> None:
    code = """
def mine(image_size, classes):
    import keras

    inputs = keras.Input((image_size, image_size, 3))
    return keras.Model(inputs, keras.layers.Conv2D(4, 3)(inputs))


def dimmed(images, strength, seed):
    import keras

    return images * keras.random.uniform(images.shape, seed=seed)


MODELS, VIEWS, AUGMENTATIONS = {"mine": mine}, {"inverted": lambda images: 255.0 - images}, {"dimmed": dimmed}
"""
    (tmp_path / "mine.py").write_text(code)
    member = replace(CNN, architecture="mine", train=replace(CNN.train, augment={"dimmed": 1.0}))
    known = replace(preflight_request("v3-8", "tensorflow", 64, mode="ops"), member=member)
    request = replace(known, shapes=replace(known.shapes, views=("identity", "inverted+shift_up")))
    activate(load_plugins(tmp_path / "mine.py"))
    try:
        before, results = compiled_in(request), run_preflight(request, ["train", "predict"], tmp_path, silent, LIMIT)
        (tmp_path / "mine.py").write_text(code.replace("4, 3", "8, 3"))
        activate(load_plugins(tmp_path / "mine.py"))
        assert compiled_in(request) != before
    finally:
        activate(NO_PLUGINS)
    assert [(result.verdict, result.message) for result in results.values()] == [("lowers", "")] * 2


def test_a_request_depends_only_on_parameters_that_are_compiled_in() -> None:
    request = preflight_request("v3-8", "tensorflow", 64)

    def with_train(**values: object) -> dict[str, object]:
        return compiled_in(replace(request, member=replace(request.member, train=replace(CNN.train, **values))))

    assert compiled_in(request) == with_train(epochs=99, seed=3, learning_rate=1.0, rotate=3.0, mixup=0.2, batch=512)
    for changes in ({"dropout": 0.4}, {"accumulate": 2}, {"ema": 0.9}, {"precision": "bfloat16"}):
        assert compiled_in(request) != with_train(**changes)


@pytest.mark.timeout(600)
@with_libtpu
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_quick_result_is_similar_and_counts_the_same_operations(backend: str, tmp_path: Path) -> None:
    full, quick = (
        run_preflight(preflight_request("v5e-8", backend, 64, mode), ["train"], tmp_path, silent, LIMIT)["train"]
        for mode in ("compile", "quick")
    )
    assert (full.verdict, quick.verdict, full.mode, quick.mode) == ("fits", "fits", "compile", "quick")
    assert 0.5 < quick.memory / full.memory < 3 and quick.flops == pytest.approx(full.flops, rel=0.02)


@pytest.mark.parametrize(("verdict", "share"), [("too_big", 1.2), ("fits", 0.9)])
def test_a_quick_result_near_the_limit_is_replaced_by_a_full_compilation(
    monkeypatch, tmp_path: Path, verdict: str, share: float
) -> None:
    calls = []

    def child(question: PreflightRequest, steps: list[str], *_) -> dict[str, dict[str, object]]:
        calls.append((question.mode, list(steps)))
        results = {"train": (verdict, share) if question.mode == "quick" else ("fits", 0.7), "predict": ("fits", 0.3)}
        return {s: {"verdict": results[s][0], "memory": results[s][1] * question.topology.memory} for s in steps}

    monkeypatch.setattr(preflight, "results_of_child", child)
    monkeypatch.setattr(preflight, "require_compiler", lambda *_: None)
    quick = preflight_request("v5e-8", "jax", 64, "quick")
    for _ in range(2):  # the second time from stored results
        results = run_preflight(quick, ["train", "predict"], tmp_path, silent, LIMIT)
        assert {step: (result.verdict, result.mode) for step, result in results.items()} == {
            "train": ("fits", "compile"),
            "predict": ("fits", "quick"),
        }
    assert calls == [("quick", ["train", "predict"]), ("compile", ["train"])]


@pytest.mark.timeout(600)
@with_libtpu
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_step_that_does_not_fit_has_its_memory_and_a_remedy(backend: str, tmp_path: Path) -> None:
    result = run_preflight(preflight_request("v3-8", backend, 8 * 65536, size=64), ["train"], tmp_path, silent, LIMIT)[
        "train"
    ]
    assert result.verdict == "too_big" and result.memory > result.limit
    assert "train.batch" in result.remedy


@pytest.mark.long  # a dozen compilations for a TPU
@pytest.mark.timeout(1200)
@with_libtpu
def test_the_largest_batch_fits_and_eight_more_images_per_device_do_not(tmp_path: Path) -> None:
    def compile_batch(batch: int) -> PreflightResult:
        return run_preflight(
            preflight_request("v2-8", "tensorflow", batch, size=256), ["train"], tmp_path, silent, LIMIT
        )["train"]

    largest = largest_batch(compile_batch, 8, 8 * 512, 8 * 4096)
    assert largest is not None and largest.verdict == "fits"
    assert compile_batch(largest.batch + 64).verdict == "too_big"


JAX_VERDICTS = """
import json, sys
from competition.preflight.topology import devices_of, topology_named
device = devices_of(topology_named("v5e-1"))[0]
import jax, keras
from competition.preflight.compiling import compile_program
from competition.preflight.lowering import Unsupported
layers = {
    "rotation": keras.layers.RandomRotation(0.1, seed=1),
    "zoom": keras.layers.RandomZoom(0.1, seed=1),
    "erasing": keras.layers.RandomErasing(seed=1),
    "bicubic": keras.layers.Resizing(8, 8, interpolation="bicubic"),
    "elastic": keras.layers.RandomElasticTransform(seed=1),
}
spec = jax.ShapeDtypeStruct((2, 16, 16, 3), "float32", sharding=jax.sharding.SingleDeviceSharding(device))
verdicts = {}
for name, layer in layers.items():
    try:
        lowered = jax.jit(lambda x: layer(x, training=True) if name != "bicubic" else layer(x)).lower(spec)
        compile_program(lowered, topology_named("v5e-1"))
        verdicts[name] = "compiles"
    except Exception as error:
        verdicts[name] = f"{type(error).__name__}: {error}"[:300]
json.dump(verdicts, sys.stdout)
"""


@pytest.mark.timeout(600)
@with_libtpu
def test_on_jax_warping_layers_compile_except_the_elastic_one() -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        [sys.executable, "-c", JAX_VERDICTS], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    verdicts = json.loads(process.stdout)
    assert {name for name, verdict in verdicts.items() if verdict == "compiles"} == {
        "rotation",
        "zoom",
        "erasing",
        "bicubic",
    }
    assert verdicts["elastic"] != "compiles"


def test_checking_operations_needs_no_libtpu(tmp_path: Path) -> None:
    request = preflight_request("v3-8", "tensorflow", 64, mode="ops")
    results = run_preflight(request, ["train", "predict"], tmp_path, silent, LIMIT)
    assert [result.verdict for result in results.values()] == ["lowers", "lowers"]
    stored_files = sorted(tmp_path.iterdir())
    assert len(stored_files) == 2 and run_preflight(request, ["train", "predict"], tmp_path, silent, LIMIT) == results
    assert sorted(tmp_path.iterdir()) == stored_files


def test_the_costs_of_the_programs_of_a_step_are_added_and_an_unsupported_view_is_named(monkeypatch) -> None:
    compiled_programs = {"network": Compiled(700, 10.0, 5.0, 2.0), "flip": Compiled(900, 1.0, 3.0, 0.5)}
    monkeypatch.setattr(compiling, "compile_program", lambda program, topology: compiled_programs[program])
    parts = [Part(lambda: "network", 3), Part(lambda: "flip", view="flip_lr")]
    result = step_result("predict", parts, topology_named("v5e-8"), silent)
    assert (result["verdict"], result["memory"], result["flops"], result["moved"]) == ("fits", 900, 31.0, 18.0)
    assert result["compile_seconds"] == 2.5

    def raise_unsupported() -> None:
        raise Unsupported(["ResizeBicubic"], "no such kernel")

    result = step_result("predict", [*parts, Part(raise_unsupported, view="scale_90")], None, silent)
    assert (result["verdict"], result["view"], result["operations"]) == ("unsupported", "scale_90", ["ResizeBicubic"])


def test_a_process_that_dies_is_reported_as_a_crash_and_not_stored(tmp_path: Path) -> None:
    result = run_preflight(preflight_request("v3-8", "tensorflow", 64, mode="ops"), ["train"], tmp_path, silent, 0.0)[
        "train"
    ]
    assert result.verdict == "crashed" and "no progress for 0 s" in result.message
    assert list(tmp_path.iterdir()) == []


def test_without_libtpu_the_error_names_the_installation_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda package: None)
    with pytest.raises(UserError, match=r"jax and libtpu not found.*\[preflight\].*MODE=ops"):
        run_preflight(preflight_request("v3-8", "tensorflow", 64), ["train"], tmp_path, silent, LIMIT)
