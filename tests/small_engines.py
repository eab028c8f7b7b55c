"""Trainings small enough to be repeated on every backend and number of devices.

Run as a program, because Keras has one backend per process: `KERAS_BACKEND=jax python small_engines.py OUT.npz
[WEIGHTS.npz]` writes the results.

The optimizer's epsilon is 1e-3. With the 1e-7 of Keras, a gradient that is 0 but for rounding becomes a step of full
length, and two correct results differ. Backends are compared without dropout, because their random numbers differ.
"""

import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from builders import network_trainer

from competition.config.errors import UserError
from competition.config.params import Member, Train
from competition.config.params_file import load_params
from competition.ensemble.metrics import METRICS, TargetKind
from competition.ensemble.view_transforms import VIEWS as NAMED_VIEWS
from competition.input_pipeline.batches import TrainingPlan, prediction_batches
from competition.input_pipeline.labelled_images import Images
from competition.training import engine as shared
from competition.training import network_trainer as training
from competition.training.checkpoint import Checkpoints
from competition.training.device import Device, open_device
from competition.training.engine import CompiledIn, Engine, State
from competition.training.engines import make_engine
from competition.training.fold_rows import FoldRows
from competition.training.model import build
from competition.training.network_trainer import NetworkTrainer
from competition.training.trainer import Epoch, Scores, StepsDone, Stopped, Trained

MAX_DEVICES = 4
N, SIDE, CLASSES, BATCH, EPOCHS = 88, 8, 3, 16, 2
ROWS, HELD_OUT = np.arange(64), np.arange(64, N)
PARAMS = load_params(Path(__file__).parents[1] / "params.yaml")
STILL = {"flip": "none", "shift": 0.0, "zoom": 0.0, "rotate": 0.0, "brightness": 0.0, "contrast": 0.0, "dropout": 0.0}
TRAIN = replace(PARAMS.train, epochs=EPOCHS, batch=BATCH, learning_rate=0.02, clip_norm=0.5, epsilon=1e-3, **STILL)
EXPORTED: Member = replace(PARAMS.members["cnn"], image_size=SIDE, alpha=0.25, train=TRAIN)
VIEWS = (lambda images: images,)
BACKEND = keras.backend.backend()


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """pixels: (N, SIDE, SIDE, 3) uint8, noise brighter in one channel.  labels: (N,) that channel."""
    random, labels = np.random.default_rng(0), np.arange(N) % CLASSES
    pixels = random.integers(0, 150, (N, SIDE, SIDE, 3))
    pixels[np.arange(N), :, :, labels] += 60
    return pixels.astype(np.uint8), labels


def network(norm: bool, dropout: float) -> keras.Model:
    """A network with batch norm, so that wrong statistics have an effect; its last layer has the name of a member's."""
    random = np.random.default_rng(1)
    inputs = keras.Input((SIDE, SIDE, 3))
    x = keras.layers.Conv2D(4, 3, use_bias=False)(keras.layers.Rescaling(1 / 127.5, -1.0)(inputs))
    if norm:
        x = keras.layers.BatchNormalization(momentum=0.8, synchronized=BACKEND == "tensorflow")(x)
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(keras.layers.Dropout(dropout, seed=3)(x)))
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(random.normal(0, 0.3, variable.shape))
    return model


def engine_of(
    train: Train, devices: int = 1, norm: bool = True, target: TargetKind = "single", scale_loss: bool = False
) -> Engine:
    device = open_device(replace(PARAMS.device, logical_devices=devices))
    compiled_in = CompiledIn(train.batch, 8, train.accumulate, train.ema > 0, target, scale_loss)
    return make_engine(lambda: network(norm, train.dropout), device, compiled_in)


class Rows(FoldRows):
    """Four steps per epoch; every row has another weight."""

    def plan(self, fold: int, train: Train) -> TrainingPlan:
        targets = np.eye(CLASSES, dtype=np.float32)[self.images.labels]
        return TrainingPlan(ROWS, targets, np.linspace(0.5, 1.5, N, dtype=np.float32), seed=2, fold=fold)


class EngineTrainer(NetworkTrainer):
    """Trains any engine, whatever its network and its targets are."""

    def _score_held_out(self, epoch: int, fold: int, is_last: bool) -> Scores:
        return {"held_out": float(held_out(self.engine).std())}


def trainer_of(engine: Engine, train: Train) -> NetworkTrainer:
    pixels, labels = pictures()
    images = Images(np.arange(N).astype(str), pixels, labels, (np.arange(N) < 64).astype(int), np.ones(N, bool))
    mesh = engine._batch_sharding.mesh if BACKEND == "jax" else None
    device = Device("cpu", 1, mesh, "", BACKEND, threads=2)
    return EngineTrainer(Rows(replace(EXPORTED, train=train), images, CLASSES), METRICS["accuracy"], engine, device)


def trained(engine: Engine, train: Train, checkpoints: Checkpoints | None = None, last_step: int = 0) -> list[Epoch]:
    """Raises Stopped after `last_step`, unless that is 0."""
    for event in trainer_of(engine, train).train(0, train, checkpoints):
        if isinstance(event, StepsDone):
            event.stop = event.step == last_step
    assert isinstance(event, Trained)
    return event.history


def held_out(engine: Engine) -> np.ndarray:
    """(rows, C) out-of-fold probabilities; the last batch is not full."""
    pixels, _ = pictures()
    return engine.probabilities(prediction_batches(pixels, HELD_OUT, engine.predict_batch), len(HELD_OUT), VIEWS)[:, 0]


def full_outcome(engine: Engine, history: list[Epoch]) -> State:
    return {**engine.state(), "loss": np.array([epoch.loss for epoch in history]), "oof": held_out(engine)}


def outcome(
    devices: int = 1, norm: bool = True, target: TargetKind = "single", scale_loss: bool = False, **changes: Any
) -> State:
    train = replace(TRAIN, **changes)
    engine = engine_of(train, devices, norm, target, scale_loss)
    return full_outcome(engine, trained(engine, train))


def uninterrupted_and_resumed() -> tuple[State, State]:
    """Outcomes of one run, the second one stopped within an epoch and resumed after something else was trained in between.

    With dropout, augmentation and a moving average.
    """
    train = replace(TRAIN, dropout=0.5, shift=0.2, flip="horizontal", steps_per_call=1, ema=0.5)
    engine = engine_of(train)
    uninterrupted = full_outcome(engine, trained(engine, train))
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), "same")
        with suppress(Stopped):
            trained(engine, train, checkpoints, last_step=3)
            raise AssertionError("the run was not stopped")
        trained(engine, replace(train, learning_rate=0.5))
        return uninterrupted, full_outcome(engine, trained(engine, train, checkpoints))


def exportable() -> State:
    """The initial variables of a member, and the probabilities that this backend gives the pictures with them."""
    model, pixels = build(EXPORTED, CLASSES), pictures()[0].astype(np.float32)
    kernel, _ = model.get_layer("logits").weights
    kernel.assign(10 * kernel)  # from nearly constant probabilities to different ones
    state = {name: keras.ops.convert_to_numpy(variable) for name, variable in shared.saved_variables(model)}
    return {**state, "probabilities": keras.ops.convert_to_numpy(keras.ops.softmax(model.predict_on_batch(pixels)))}


def several_hosts(number: int) -> dict[str, State]:
    """The outcomes of host `number` of several with one device each.

    The first host loses its last checkpoint, as if it was stopped a moment before the others.
    """
    train = replace(TRAIN, epochs=4, steps_per_call=4)
    engine = engine_of(train, 0)
    uninterrupted = full_outcome(engine, trained(engine, train))
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), "same")
        with suppress(Stopped):
            trained(engine, train, checkpoints, last_step=12)
        newest = max(Path(folder).glob("step-*.json"))
        if number == 0:
            newest.unlink()
        resumed = full_outcome(engine, trained(engine, train, checkpoints))
    try:
        next(trainer_of(engine, train).train(number, train))
        user_error = ""
    except UserError as error:
        user_error = str(error)
    outcomes = {"hosts": outcome(0), "whole": uninterrupted, "resumed": resumed, "decisions": decisions(number)}
    return {**outcomes, "user_error": {"message": np.array(user_error)}}


def decisions(number: int) -> State:
    """The step after which host `number` stops. Host 1 alone receives the signal, host 0 alone is slow."""
    labels = np.arange(N) % CLASSES
    images = Images(np.array([f"i{n}" for n in range(N)]), pictures()[0], labels, np.arange(N) % 2, np.ones(N, bool))
    train = replace(TRAIN, epochs=50, steps_per_call=4)
    member = replace(PARAMS.members["cnn"], image_size=SIDE, alpha=0.25, train=train)
    trainer = network_trainer(FoldRows(member, images, CLASSES), "accuracy", open_device(PARAMS.device))
    training.CALL_SECONDS, training.FIRST_STEPS, last_step = 0.0 if number == 0 else 1e9, 1, 0
    with suppress(Stopped):
        for event in trainer.train(0, train, score_epochs=False):
            if isinstance(event, StepsDone):
                last_step = event.step
                event.stop = number == 1 and last_step >= 6
    return {"stopped": np.array(last_step)}


def views_in_groups() -> State:
    """Predictions under three views that one program makes, and that three programs make; programs: how many of them."""
    pixels, _ = pictures()
    together, found = shared.VIEW_BYTES, {}
    for name, size in (("together", together), ("apart", 1)):
        engine, shared.VIEW_BYTES = engine_of(TRAIN, 2), size
        batches = prediction_batches(pixels, HELD_OUT, engine.predict_batch)
        views = [NAMED_VIEWS[view] for view in ("identity", "flip_lr", "rot90")]
        found[name] = engine.probabilities(batches, len(HELD_OUT), views)
        programs = engine._view_program.cache_info()  # type: ignore[attr-defined]
        found[f"{name}_programs"] = np.array(programs.currsize)
    shared.VIEW_BYTES = together
    return found


def all_outcomes(weights_file: Path | None, programs: Path) -> dict[str, State]:
    """programs: folder for compiled programs of JAX."""
    if "JAX_NUM_PROCESSES" in os.environ:
        return several_hosts(int(os.environ["JAX_PROCESS_ID"]))
    open_device(replace(PARAMS.device, logical_devices=MAX_DEVICES), programs)  # the CPU can be split once per process
    outcomes = {f"devices{n}": outcome(n) for n in (1, MAX_DEVICES)}
    outcomes["options"] = outcome(
        2, accumulate=2, ema=0.9, focal_gamma=1.5, clip_value=0.02, freeze_epochs=1, layer_decay=0.5
    )
    outcomes["multi"] = outcome(2, target="multi", scale_loss=True, focal_gamma=1.5)
    outcomes["regression"] = outcome(2, target="regression")
    outcomes["whole"], outcomes["micro_batches"] = outcome(norm=False), outcome(norm=False, accumulate=4)
    outcomes["uninterrupted"], outcomes["resumed"] = uninterrupted_and_resumed()
    outcomes["views"], outcomes["member"] = views_in_groups(), exportable()
    if weights_file is not None:
        engine = engine_of(TRAIN)
        with np.load(weights_file) as stored:
            names = [name for name in stored if name.startswith("devices1|model/")]
            engine.load_weights({name.split("|")[1]: stored[name] for name in names})
        outcomes["foreign"] = {"oof": held_out(engine)}
    return outcomes


def save_outcomes(path: Path, cases: dict[str, State]) -> None:
    np.savez(path, **{f"{case}|{name}": value for case, state in cases.items() for name, value in state.items()})


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    weights_file = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    save_outcomes(Path(sys.argv[1]), all_outcomes(weights_file, Path(f"{sys.argv[1]}.programs")))
