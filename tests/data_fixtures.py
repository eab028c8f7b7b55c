"""For the tests of data: competition settings, synthetic images and photos, rows, and the real data if present."""

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from competition.prepare.adapter_types import Row, Settings
from competition.prepare.adapters import folder

SIDE = 48  # pixels of a scene
PLAIN = Settings(
    name="small", adapter="digits", slug="", source="", image_size=0, validation="pool", id_column="", label_column="",
    metric="", predicts="", miniature=0, seed=42,
)  # fmt: skip


def no_network(slug: str, folder: Path) -> None:
    raise AssertionError(f"unexpected download of {slug}")


@pytest.fixture(scope="session")
def make_settings() -> Callable[..., Settings]:
    return lambda **changes: replace(PLAIN, **changes)


@pytest.fixture
def real_data() -> Path:
    """Folder of real photos and unusual image files: $GOLDFOLD_DATA, or ../shared/data next to the repository."""
    configured = os.environ.get("GOLDFOLD_DATA")
    folder = Path(configured) if configured else Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real data are absent: set GOLDFOLD_DATA to their folder")
    return folder


def synthetic_image(seed: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """A smooth random image; its perceptual hash differs from that of every other seed."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def scene(seed: int) -> Image.Image:
    """A square one."""
    return synthetic_image(seed, (SIDE, SIDE))


def another_photo(image: Image.Image, seed: int) -> Image.Image:
    """Another photo of the same scene: other crop, rotation and light, more than 6 bits apart in the perceptual hash."""
    rng = np.random.default_rng(seed)
    side = int(SIDE * rng.uniform(0.8, 0.92))
    x, y = rng.integers(0, SIDE - side + 1, 2)
    photo = image.rotate(rng.uniform(-5, 5), Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))
    photo = photo.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        photo = enhancer(photo).enhance(rng.uniform(0.9, 1.1))
    return photo


def thumb(image: Image.Image) -> np.ndarray:
    """Thumbnail of shape (16, 16, 3), uint8, as in the index."""
    return np.array(image.resize((16, 16), Image.Resampling.BOX))


def digit_thumbs() -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails (1797, 16, 16, 3) uint8 and labels (1797,) of handwritten digits, which contain no series."""
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    large = (grey.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8).repeat(2, 1).repeat(2, 2)
    return np.repeat(large[..., None], 3, -1), labels


def encode_image(image: Image.Image, image_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def row(
    image_id: str, seed: int, label: int = 0, part: str = "train", position: int = 0, data: bytes | None = None
) -> Row:
    image = encode_image(synthetic_image(seed)) if data is None else data
    return Row(image_id, label, part, "00.tfrec", position, image)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw folder of the digits competition; tests must not change it."""
    from competition.prepare.adapters import ADAPTERS

    raw = tmp_path_factory.mktemp("digits")
    ADAPTERS["digits"].download(raw, PLAIN, no_network)
    return raw


@pytest.fixture
def make_source(tmp_path):
    """make_source(tables, images) -> a source directory."""

    def write_source(tables, images, name="source"):
        source = tmp_path / name
        for number, path in enumerate(images):
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            image_format = Image.registered_extensions()[Path(path).suffix.lower()]
            (source / path).write_bytes(encode_image(synthetic_image(number), image_format))
        for table, text in tables.items():
            (source / table).write_text(text, encoding="utf-8")
        return source

    return write_source


@pytest.fixture
def read(tmp_path, make_settings):
    """read(source, **changes) -> (competition, rows): download into a raw folder, then read it like `make prepare`."""

    def read_source(source, **changes):
        raw = tmp_path / "raw"
        raw.mkdir()
        settings = make_settings(adapter="folder", source=str(source), **changes)
        folder.download(raw, settings, no_network)
        return folder.describe(raw, settings), list(folder.rows(raw, settings))

    return read_source
