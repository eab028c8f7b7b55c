"""What is fuzzed: each reader of files from outside, as a function of bytes that may only raise UserError."""

import io
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from competition.config.errors import UserError
from competition.config.params import Params
from competition.config.params_file import load_params
from competition.config.yaml_text import parse_yaml
from competition.ensemble.external_predictions import OurRows, load_external
from competition.ensemble.stored_predictions import ViewPredictions, load_scores
from competition.files.image_codec import BadImage, decode
from competition.kaggle import archive
from competition.prepare.adapters.tables import read_csv
from competition.prepare.tfrecord_format import read_example, read_records

MEMORY = Path("/dev/shm")  # a folder in memory, where there is one
FOLDER = Path(tempfile.mkdtemp(prefix="goldfold-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))


def in_file(name: str, data: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(data)
    return path


def yaml(data: bytes) -> None:
    parse_yaml(data.decode("utf-8", "replace"), "params.yaml")


def params(data: bytes) -> None:
    assert isinstance(load_params(in_file("params.yaml", data)), Params)


def table(data: bytes) -> None:
    read_csv(in_file("train.csv", data))


def zip_file(data: bytes) -> None:
    folder = FOLDER / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    archive.extract(in_file("a.zip", data), folder)


def npz(data: bytes) -> None:
    path = in_file("oof.npz", data)
    for read in (ViewPredictions.load, load_scores):
        try:
            read(path)
        except UserError:
            continue


def external(name: str, data: bytes) -> None:
    path, ids = in_file(name, data), np.array(["i0", "i1"])
    load_external(path, [path], OurRows(("a", "b"), ids, ids, np.array([0, 1]), "d"), "d")


def tfrecord(data: bytes) -> None:
    for offset, serialized in read_records(io.BytesIO(data), "00-1.tfrec"):
        read_example(serialized, f"record at {offset}")


def image(data: bytes) -> None:
    try:
        decode(data, 16, "squash")
    except BadImage:
        return


READERS: dict[str, Callable[[bytes], None]] = {
    "csv": table, "external_csv": lambda data: external("oof.csv", data), "external_npz": lambda data: external("o.npz", data),
    "image": image, "npz": npz, "params": params, "tfrecord": tfrecord, "yaml": yaml, "zip": zip_file,
}  # fmt: skip


def tried(name: str, data: bytes) -> None:
    """Read `data`; a UserError is what a damaged file gives."""
    try:
        READERS[name](data)
    except UserError:
        return
