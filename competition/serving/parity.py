"""Compare the formats of an export with each other and with the stored predictions, and measure their speed."""

import time
import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from competition.config.errors import UserError
from competition.prepare.decoding import decode
from competition.serving.bundle import FILES, Bundle, size_on_disk
from competition.serving.engines import load_engine

FORMAT_TOLERANCE = 1e-3  # largest difference of a probability between formats; 1e-5 is usual
STORED_TOLERANCE = 5e-3  # and from the stored predictions, whose views are rounded to float16; 2e-4 is usual
REPEATS = 20  # timed calls with one image


@dataclass(frozen=True)
class Check:
    """One format on a sample of images."""

    format: str
    megabytes: float
    load_seconds: float
    milliseconds: float  # median of one image, decoding included
    difference: float  # largest absolute difference of a probability from the SavedModel's on the same pixels
    changed: int  # labels that differ from it


def check_formats(folder: Path, bundle: Bundle, images: Sequence[bytes]) -> tuple[list[Check], np.ndarray, np.ndarray]:
    """Check every format of an export.  images: encoded, at least one.

    Returns the checks and the reference: (B, C) probabilities and (B,) class numbers, of the first format, from the
    pixels that Pillow decodes.  Raises UserError if a format differs by more than FORMAT_TOLERANCE.
    """
    pixels = [np.stack([decode(data, size, bundle.fit) for data in images]) for size in bundle.sizes]
    checks: list[Check] = []
    reference: tuple[np.ndarray, np.ndarray] | None = None
    for name in bundle.formats:
        started = time.perf_counter()
        engine = load_engine(name, folder, bundle)
        load_seconds = time.perf_counter() - started
        if reference is None:
            reference = engine.run_pixels(pixels)
        prepared = [engine.prepare(data) for data in images]
        probs, classes = engine.run(prepared)
        difference = float(np.abs(probs - reference[0]).max())
        if not difference <= FORMAT_TOLERANCE:  # also true for NaN
            raise UserError(
                f"{FILES[name]} differs from {FILES[bundle.formats[0]]} by {difference:.2g} in a probability, expected at most "
                f"{FORMAT_TOLERANCE:g}; export without {name} (FORMAT=)"
            )
        seconds = timeit.repeat(lambda: engine.run([engine.prepare(images[0])]), repeat=REPEATS, number=1)  # noqa: B023
        milliseconds = round(float(np.median(seconds)) * 1e3, 2)
        megabytes = size_on_disk(folder / FILES[name]) / 1e6
        changed = int((classes != reference[1]).sum())
        checks.append(Check(name, round(megabytes, 2), round(load_seconds, 2), milliseconds, difference, changed))
    assert reference is not None, "an export has at least one format"
    return checks, *reference


def check_stored(probs: np.ndarray, stored: np.ndarray) -> float:
    """Largest absolute difference from the stored predictions of the same rows. Raises UserError beyond STORED_TOLERANCE."""
    difference = float(np.abs(probs - stored).max())
    if not difference <= STORED_TOLERANCE:
        raise UserError(
            f"the exported model differs from the stored predictions by {difference:.2g} in a probability, expected at most "
            f"{STORED_TOLERANCE:g}; `make predict FORCE=1` predicts again with the packages installed now"
        )
    return difference
