"""Preflight with the real compiler for absent TPUs. Needs jax and libtpu (`make test-preflight`); takes 1 to 2 minutes."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import tensorflow as tf
from builders import params

from competition.config.plugins import NO_PLUGINS, load_plugins
from competition.files.child_process import ChildEnded
from competition.input_pipeline.mixup import COUNT
from competition.preflight import compile_steps
from competition.preflight.compile_steps import results_of_child, run_preflight
from competition.preflight.lowering import CannotCompile, Shapes, lowered
from competition.preflight.pairs import KAGGLE, NEWEST
from competition.preflight.results import PreflightRequest, compiled_in, remedy_for
from competition.preflight.topology import topology_named
from competition.training.device_augmentation import augmented

CNN = params().members["cnn"]
LIMIT = 600.0
with_libtpu = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="libtpu is not installed; make test-preflight installs it"
)


def preflight_request(topology: str, backend: str, batch: int, mode: str = "compile", size: int = 16):
    tpu = topology_named(topology)
    shapes = Shapes(10, tpu.devices, batch, 16 * tpu.devices, ("identity", "shift_up"))
    return PreflightRequest(replace(CNN, image_size=size), shapes, tpu, NO_PLUGINS, backend, mode)


@pytest.mark.timeout(600)
@with_libtpu
@pytest.mark.parametrize(
    ("topology", "backend"), [("v3-8", "tensorflow"), ("v5e-8", "jax"), ("v3-8", "jax"), ("v5e-8", "tensorflow")]
)
def test_both_steps_compile_on_both_backends(topology: str, backend: str, tmp_path: Path) -> None:
    request = preflight_request(topology, backend, 64)
    results = run_preflight(request, ["train", "predict"], tmp_path, print, LIMIT)
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
    shapes = replace(known.shapes, views=("identity", "inverted+shift_up"))
    request = replace(known, shapes=shapes, plugins=load_plugins(tmp_path / "mine.py"))
    before, results = compiled_in(request), run_preflight(request, ["train", "predict"], tmp_path, print, LIMIT)
    assert [(result.verdict, result.message) for result in results.values()] == [("lowers", "")] * 2
    (tmp_path / "mine.py").write_text(code.replace("4, 3", "8, 3"))
    assert compiled_in(replace(request, plugins=load_plugins(tmp_path / "mine.py"))) != before


@pytest.mark.timeout(600)
@with_libtpu
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_step_that_does_not_fit_has_its_memory_and_a_remedy(backend: str, tmp_path: Path) -> None:
    request = preflight_request("v3-8", backend, 8 * 65536, size=64)
    result = run_preflight(request, ["train"], tmp_path, print, LIMIT)["train"]
    assert result.verdict == "too_big" and result.memory > result.limit
    assert "train.batch" in remedy_for(result, request.member)


def test_a_process_that_dies_is_reported_as_a_crash_and_not_stored(tmp_path: Path) -> None:
    request = preflight_request("v3-8", "tensorflow", 64, mode="ops")
    result = run_preflight(request, ["train"], tmp_path, print, 0.0)["train"]
    assert (result.verdict, result.message) == ("crashed", "no progress for 0 s; LIMIT= allows more")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_an_exception_in_the_users_view_is_shown_as_such_and_not_stored(backend: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def failing(images):\n    return images.nothing\nVIEWS = {'failing': failing}\n")
    known = replace(preflight_request("v3-8", backend, 64, mode="ops"), plugins=load_plugins(tmp_path / "mine.py"))
    request = replace(known, shapes=replace(known.shapes, views=("identity", "failing")))
    result = run_preflight(request, ["predict"], tmp_path / "cache", print, LIMIT)["predict"]
    assert result.verdict == "crashed" and not (tmp_path / "cache").exists()
    assert result.message.startswith("mine.py line 2: VIEWS['failing']: AttributeError: ")


@pytest.mark.parametrize(
    ("mode", "pair", "remedy"),
    [
        ("compile", NEWEST, "`python -m pip install "),
        ("compile", KAGGLE, "delete .venv/preflight-kaggle and run `make preflight PAIR=kaggle` "),
        ("ops", NEWEST, ""),
    ],
)
def test_libtpu_is_suspected_only_if_the_process_that_loads_it_died(mode, pair, remedy, monkeypatch) -> None:
    def dying(*arguments: object):
        yield {"event": "step", "step": "train", "result": {"verdict": "fits"}}
        raise ChildEnded("a line\nthe last line\n")

    monkeypatch.setattr(compile_steps, "run_child", dying)
    request = replace(preflight_request("v3-8", "jax", 64, mode), pair=pair)
    results = results_of_child(request, ["train", "predict"], print, LIMIT)
    assert results["train"] == {"verdict": "fits"} and results["predict"]["verdict"] == "crashed"
    cause, _, advice = results["predict"]["message"].partition("; jax and libtpu may be incompatible: ")
    assert cause == "the compiler's process ended: the last line"
    assert bool(advice) == bool(remedy) and advice.startswith(remedy)


IMAGES = [((2, 16, 16, 3), "float32")]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Set a seed: another test of this process may have enabled deterministic operations, which require one."""
    tf.random.set_seed(1)


@pytest.mark.parametrize(
    ("function", "specs", "operation"),
    [
        (lambda: tf.io.decode_jpeg(tf.constant(b"bytes"), channels=3), [], "DecodeJpeg"),
        (lambda x: tf.py_function(lambda y: y, [x], tf.float32), IMAGES, "EagerPyFunc"),
        (lambda x: tf.image.resize(x, (8, 8), antialias=True), IMAGES, "ScaleAndTranslate"),
    ],
)
def test_an_unsupported_operation_is_an_error_with_its_name(function, specs, operation) -> None:
    with pytest.raises(CannotCompile) as unsupported:
        lowered(function, specs)
    assert operation in unsupported.value.result["operations"]
    assert CannotCompile("nothing is named").result["operations"] == ["an operation (nothing is named)"]


def test_the_augmentation_inside_the_step_is_lowered() -> None:
    specs = [((4, 16, 16, 3), "uint8"), ((4, COUNT), "float32"), ((4, 3), "float32")]
    assert len(lowered(lambda pixels, numbers, targets: augmented((pixels, numbers), targets), specs)) > 100
