"""The real compiler for TPUs that are not here. Needs jax and libtpu (`make test-preflight`), and a minute or two."""

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
from competition.preflight.answers import PreflightRequest, PreflightResult, compiled_in, largest_batch, run_preflight
from competition.preflight.child import step_result
from competition.preflight.compiling import Compiled
from competition.preflight.lowering import Part, Shapes, Unsupported
from competition.preflight.topology import topology_named

ROOT = Path(__file__).parents[2]
PARAMS = load_params(ROOT / "params.yaml")
CNN = replace(PARAMS.members["cnn"], image_size=16)
LIMIT = 600.0
with_libtpu = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="libtpu is not installed; make test-preflight does it"
)


def silent(what: str, seconds: int) -> None:
    pass


def question(topology: str, backend: str, batch: int, mode: str = "compile", size: int = 16) -> PreflightRequest:
    tpu = topology_named(topology)
    shapes = Shapes(10, tpu.devices, batch, 16 * tpu.devices, ("identity", "shift_up"))
    return PreflightRequest(replace(CNN, image_size=size), shapes, tpu, backend, mode)


@pytest.mark.timeout(600)
@with_libtpu
@pytest.mark.parametrize(
    ("topology", "backend"), [("v3-8", "tensorflow"), ("v5e-8", "jax"), ("v3-8", "jax"), ("v5e-8", "tensorflow")]
)
def test_both_steps_compile_on_both_backends(topology: str, backend: str, tmp_path: Path) -> None:
    asked = question(topology, backend, 64)
    answers = run_preflight(asked, ["train", "predict"], tmp_path, silent, LIMIT)
    for step, batch in (("train", 64), ("predict", 128)):
        found = answers[step]
        assert (found.verdict, found.batch, found.message) == ("fits", batch, "")
        assert 0 < found.memory < found.limit and found.flops > 0 and found.moved > 0 and found.roofline > 0


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
    known = replace(question("v3-8", "tensorflow", 64, mode="ops"), member=member)
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


def test_what_is_not_compiled_in_is_not_asked_again() -> None:
    asked = question("v3-8", "tensorflow", 64)

    def with_train(**values: object) -> dict[str, object]:
        return compiled_in(replace(asked, member=replace(asked.member, train=replace(CNN.train, **values))))

    assert compiled_in(asked) == with_train(epochs=99, seed=3, learning_rate=1.0, rotate=3.0, mixup=0.2, batch=512)
    for changed in ({"dropout": 0.4}, {"accumulate": 2}, {"ema": 0.9}, {"precision": "bfloat16"}):
        assert compiled_in(asked) != with_train(**changed)


@pytest.mark.timeout(600)
@with_libtpu
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_quick_answer_is_near_and_counts_the_same_operations(backend: str, tmp_path: Path) -> None:
    full, quick = (
        run_preflight(question("v5e-8", backend, 64, mode), ["train"], tmp_path, silent, LIMIT)["train"]
        for mode in ("compile", "quick")
    )
    assert (full.verdict, quick.verdict, full.mode, quick.mode) == ("fits", "fits", "compile", "quick")
    assert 0.5 < quick.memory / full.memory < 3 and quick.flops == pytest.approx(full.flops, rel=0.02)


@pytest.mark.parametrize(("verdict", "share"), [("too_big", 1.2), ("fits", 0.9)])
def test_what_hardly_fits_quickly_is_asked_again_with_all_effort(
    monkeypatch, tmp_path: Path, verdict: str, share: float
) -> None:
    asked = []

    def child(question: PreflightRequest, steps: list[str], *_) -> dict[str, dict[str, object]]:
        asked.append((question.mode, list(steps)))
        found = {"train": (verdict, share) if question.mode == "quick" else ("fits", 0.7), "predict": ("fits", 0.3)}
        return {s: {"verdict": found[s][0], "memory": found[s][1] * question.topology.memory} for s in steps}

    monkeypatch.setattr(preflight, "_child", child)
    monkeypatch.setattr(preflight, "require_compiler", lambda *_: None)
    quick = question("v5e-8", "jax", 64, "quick")
    for _ in range(2):  # the second time from what was kept
        found = run_preflight(quick, ["train", "predict"], tmp_path, silent, LIMIT)
        assert {step: (answer.verdict, answer.mode) for step, answer in found.items()} == {
            "train": ("fits", "compile"),
            "predict": ("fits", "quick"),
        }
    assert asked == [("quick", ["train", "predict"]), ("compile", ["train"])]


@pytest.mark.timeout(600)
@with_libtpu
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_what_does_not_fit_says_how_much_it_needs_and_what_to_do(backend: str, tmp_path: Path) -> None:
    found = run_preflight(question("v3-8", backend, 8 * 65536, size=64), ["train"], tmp_path, silent, LIMIT)["train"]
    assert found.verdict == "too_big" and found.memory > found.limit
    assert "train.batch" in found.remedy


@pytest.mark.timeout(1200)
@with_libtpu
def test_the_largest_batch_fits_and_eight_more_per_device_overflow(tmp_path: Path) -> None:
    def asked(batch: int) -> PreflightResult:
        return run_preflight(question("v2-8", "tensorflow", batch, size=256), ["train"], tmp_path, silent, LIMIT)[
            "train"
        ]

    found = largest_batch(asked, 8, 8 * 512, 8 * 4096)
    assert found is not None and found.verdict == "fits"
    assert asked(found.batch + 64).verdict == "too_big"


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
found = {}
for name, layer in layers.items():
    try:
        lowered = jax.jit(lambda x: layer(x, training=True) if name != "bicubic" else layer(x)).lower(spec)
        compile_program(lowered, topology_named("v5e-1"))
        found[name] = "compiles"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"[:300]
json.dump(found, sys.stdout)
"""


@pytest.mark.timeout(600)
@with_libtpu
def test_on_jax_warping_layers_compile_and_the_elastic_one_does_not() -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", JAX_VERDICTS], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    assert {name for name, verdict in found.items() if verdict == "compiles"} == {
        "rotation",
        "zoom",
        "erasing",
        "bicubic",
    }
    assert found["elastic"] != "compiles"


def test_operations_alone_are_answered_without_libtpu(tmp_path: Path) -> None:
    asked = question("v3-8", "tensorflow", 64, mode="ops")
    found = run_preflight(asked, ["train", "predict"], tmp_path, silent, LIMIT)
    assert [answer.verdict for answer in found.values()] == ["lowers", "lowers"]
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2 and run_preflight(asked, ["train", "predict"], tmp_path, silent, LIMIT) == found
    assert sorted(tmp_path.iterdir()) == kept


def test_a_step_of_several_programs_adds_up_and_names_the_view_that_stands_in_the_way(monkeypatch) -> None:
    cost = {"network": Compiled(700, 10.0, 5.0, 2.0), "flip": Compiled(900, 1.0, 3.0, 0.5)}
    monkeypatch.setattr(compiling, "compile_program", lambda program, topology: cost[program])
    parts = [Part(lambda: "network", 3), Part(lambda: "flip", view="flip_lr")]
    told = step_result("predict", parts, topology_named("v5e-8"))
    assert (told["verdict"], told["memory"], told["flops"], told["moved"]) == ("fits", 900, 31.0, 18.0)
    assert told["seconds"] == 2.5

    def cannot() -> None:
        raise Unsupported(["ResizeBicubic"], "no such kernel")

    told = step_result("predict", [*parts, Part(cannot, view="scale_90")], None)
    assert (told["verdict"], told["view"], told["operations"]) == ("unsupported", "scale_90", ["ResizeBicubic"])


def test_a_process_that_dies_is_a_crash_and_is_asked_again(tmp_path: Path) -> None:
    found = run_preflight(question("v3-8", "tensorflow", 64, mode="ops"), ["train"], tmp_path, silent, 0.0)["train"]
    assert found.verdict == "crashed" and "ended with -9" in found.message
    assert list(tmp_path.iterdir()) == []


def test_without_libtpu_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight, "installed", lambda package: False)
    with pytest.raises(UserError, match=r"jax and libtpu not found.*\[preflight\].*MODE=ops"):
        run_preflight(question("v3-8", "tensorflow", 64), ["train"], tmp_path, silent, LIMIT)
