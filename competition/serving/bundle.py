"""An exported folder: names of its files, and serving.json, which says how to use the model without this project."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.files.manifest import files_intact, read_manifest
from competition.prepare.decoding import Fit

FORMATS = ("saved_model", "onnx", "litert")
FILES = {"saved_model": "saved_model", "onnx": "model.onnx", "litert": "model.tflite"}
DESCRIPTION, CLASSES, CARD = "serving.json", "classes.txt", "README.md"


@dataclass(frozen=True)
class Bundle:
    """The content of serving.json.

    sizes: sides of the square images that the model takes, pixels; the input of side S is named images_S.
    features_size: side of the images of which the model computes features.
    fit: how an image becomes square, see `images.decode`.  digest: of the chain and its fold models.
    """

    title: str
    competition: str
    data: str  # digest of the data that the models were trained on
    digest: str
    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    features_size: int
    fit: Fit
    formats: tuple[str, ...]


def load_bundle(folder: Path) -> Bundle:
    """Load serving.json of a complete export. Raises UserError if a file is missing or was changed."""
    path = folder / "manifest.json"
    manifest = read_manifest(path)
    if manifest is None:
        raise UserError(f"{folder} holds no finished export; `make export` makes it")
    if not files_intact(path, manifest):
        raise UserError(
            f"{folder}: files are missing or differ from manifest.json; `make export FORCE=1` makes them again"
        )
    stored = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    if values.keys() != {field.name for field in fields(Bundle)}:
        raise UserError(f"{folder} was written by another version of goldfold; `make export` makes it again")
    return Bundle(**values)
