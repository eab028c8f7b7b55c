"""Small worlds for the data rooms: settings, pictures, rows, and the real data where it is there."""

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow  # noqa: F401  (records load it when first used; the devices are cut before that, in tests/conftest.py)
from PIL import Image

from competition.data.adapters import folder
from competition.data.competition import Row, Settings

KIND = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".bmp": "BMP", ".gif": "GIF"}
PLAIN = Settings(
    name="small", adapter="digits", slug="", source="", image_size=0, validation="pool", id_column="", label_column="",
    metric="", predicts="", miniature=0, seed=42,
)  # fmt: skip


def no_network(slug: str, folder: Path) -> None:
    raise AssertionError(f"{slug} would have been fetched")


@pytest.fixture(scope="session")
def settings() -> Callable[..., Settings]:
    return lambda **changes: replace(PLAIN, **changes)


@pytest.fixture
def real_data() -> Path:
    """Real photos and awkward files, in $GOLDFOLD_DATA or ../shared/data beside the repository."""
    named = os.environ.get("GOLDFOLD_DATA")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real data: set GOLDFOLD_DATA to the folder that holds it")
    return folder


def picture(seed: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """A smooth random picture: like a photo to a perceptual hash, and like no other seed's."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def row(one: str, seed: int, label: int = 0, part: str = "train", place: int = 0, data: bytes | None = None) -> Row:
    return Row(one, label, part, "00.tfrec", place, encoded(picture(seed)) if data is None else data)


@pytest.fixture
def world() -> "type[World]":
    return World


class World:
    """The helpers above, reachable from every test file."""

    picture, encoded, row, no_network = (
        staticmethod(picture),
        staticmethod(encoded),
        staticmethod(row),
        staticmethod(no_network),
    )


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw folder of the digits competition; read only."""
    from competition.data.adapters import ADAPTERS

    raw = tmp_path_factory.mktemp("digits")
    ADAPTERS["digits"].download(raw, PLAIN, no_network)
    return raw


@pytest.fixture
def make(tmp_path, world):
    """make(tables, images) -> a source directory."""

    def made(tables, images, name="source"):
        source = tmp_path / name
        for number, path in enumerate(images):
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            data = world.encoded(world.picture(number), KIND[Path(path).suffix.lower()])
            (source / path).write_bytes(data)
        for table, text in tables.items():
            (source / table).write_text(text, encoding="utf-8")
        return source

    return made


@pytest.fixture
def read(tmp_path, settings, world):
    """read(source, **settings) -> (competition, rows), through a raw folder as the pipeline makes it."""

    def done(source, **changes):
        raw = tmp_path / "raw"
        raw.mkdir()
        told = settings(adapter="folder", source=str(source), **changes)
        folder.download(raw, told, world.no_network)
        return folder.describe(raw, told), list(folder.rows(raw, told))

    return done
