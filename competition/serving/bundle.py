"""An exported folder: names of its files, and serving.json, which says how to use the model without this project."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from competition.config.errors import UserError
from competition.config.params import Block
from competition.files.image_codec import Fit
from competition.files.manifest import intact_manifest

FILES = {"saved_model": "saved_model", "onnx": "model.onnx"}  # format -> its file or folder
DESCRIPTION, CLASSES, CARD = "serving.json", "classes.txt", "README.md"


@dataclass(frozen=True)
class Bundle(Block):
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
    if intact_manifest(folder / "manifest.json") is None:
        raise UserError(f"{folder}: files are missing or differ from manifest.json; `make export FORCE=1` makes them")
    try:
        return TypeAdapter(Bundle).validate_json((folder / DESCRIPTION).read_bytes())
    except ValidationError:
        raise UserError(f"{folder} was written by another version of goldfold; `make export` makes it again") from None
