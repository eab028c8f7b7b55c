"""Small synthetic images whose colour shows their class, and a tiny member."""

import resource
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from competition.config.params import Member, Params, Train
from competition.config.params_file import load_params, parse_overrides
from competition.config.plugins import NO_PLUGINS
from competition.ensemble.metrics import METRICS
from competition.files.image_codec import encode
from competition.files.manifest import write_manifest
from competition.prepare.adapter_types import Competition
from competition.prepare.prepared import Prepared
from competition.submission.ledger import Entry
from competition.workspace.runs import Run, runs_of
from competition.workspace.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
CLASSES, SIZE = 3, 16

STILL = {
    "flip": "none", "shift": 0.0, "zoom": 0.0, "rotate": 0.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0,
    "erase": 0.0, "mixup": 0.0, "cutmix": 0.0, "crop": 1.0,
}  # fmt: skip


def params(overrides: str = "") -> Params:
    """The parameters of params.yaml, with overrides as of SET."""
    return deepcopy(_params(overrides))


@cache
def _params(overrides: str) -> Params:
    return load_params(ROOT / "params.yaml", parse_overrides(overrides))


def run_of(work: Path, prepared: Prepared, params: Params, name: str, seed: int = 0) -> Run:
    """The run of one seed of a member, by default the first."""
    return runs_of(Workspace(work, params, loaded=prepared), name)[seed]


def competition(names: tuple[str, ...] = ("a", "b"), **changes: Any) -> Competition:
    """A competition on single labels of the classes `names`, scored by accuracy, that is not on Kaggle."""
    fields = {"name": "c", "slug": "", "metric": "accuracy", "predicts": "label", "id_column": "id"}
    fields |= {"classes": names, "prediction_columns": ("label",), "label_values": names}
    return Competition(**{**fields, **changes})


def ledger_entry(**changes: Any) -> Entry:
    """A submission of one member whose honest macro-F1 is 0.90 ± 0.01 on 539 rows."""
    entry = Entry(
        digest="abcd" * 16, file="a.csv", competition="c", members=("cnn",), weights=(1.0,), views=("identity",),
        params_digest="", git_commit="", metric="macro_f1", oof_score=0.9, honest_score=0.9, standard_error=0.01,
        oof_rows=539, test_rows=9, partial="", made="",
    )  # fmt: skip
    return replace(entry, **changes)


def files_below(folder: Path) -> dict[str, bytes]:
    """Path below the folder -> content of every file that is not hidden."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write_weights(folder: Path, weights: bytes, depends: Mapping[str, object] = MappingProxyType({})) -> None:
    """Write the files of a fold model that other results depend on, like `make train`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.npz").write_bytes(weights)
    write_manifest(folder / "manifest.json", depends, [folder / "weights.npz"], {}, {})


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    """Wait until the condition holds, at most so many seconds; return whether it does."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return bool(holds)


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may become larger than `size` bytes in this block, as on a full disk; children inherit it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def member(**train: Any) -> Member:
    """A tiny network on 16 pixels that learns from unchanged images, without dropout; `train` overrides its training parameters."""
    settings = params("members.cnn.image_size=16 members.cnn.alpha=0.25 train.precision=float32")
    tiny_train: Train = replace(settings.train, **STILL, epochs=2, batch=8, dropout=0.0, learning_rate=0.01)
    return replace(settings.members["cnn"], train=replace(tiny_train, **train))


def pixels_of(labels: np.ndarray, seed: int = 0, size: int = SIZE) -> np.ndarray:
    """Images of shape (N, size, size, 3), uint8: noise that is brighter in the channel of the label."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 160, (len(labels), size, size, 3))
    images[np.arange(len(labels)), :, :, labels] += 90
    return images.astype(np.uint8)


def save_images(folder: Path, names: Iterable[str], images: np.ndarray) -> None:
    """Write each image as PNG under its name, which may have folders."""
    for name, image in zip(names, images, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encode(image, "png"))


def numbered(count: int, size: int = 2) -> np.ndarray:
    """Images of shape (count, size, size, 3), uint8: every pixel of image n is n."""
    return np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, size, size, 3)).copy()


def network_trainer(rows: Any, metric: str, device: Any, batch: int = 8, engine: Any = None) -> Any:
    """A trainer without plugins.  batch: of predictions.  engine: None = compiled here."""
    from competition.training import engines, network_trainer

    engine = engine or engines.engine_of(rows.member, rows.classes, batch, device, NO_PLUGINS, rows.targets)
    return network_trainer.NetworkTrainer(rows, METRICS[metric], engine, device)
