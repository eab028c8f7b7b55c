"""Draw a competition at its true size, and zip it as Kaggle does; for dress_rehearsal.py."""

import shutil
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from competition.files.image_codec import encode
from competition.prepare.adapters import drawn, flowers, plants
from competition.prepare.adapters.tables import write_csv

LARGE_CLASSES, LARGE_ROWS, LARGE_TEST, LARGE_SIDE = 1_000, 100_000, 20_000, 256


def draw(name: str, raw: Path, share: float) -> None:
    """Write the files of the competition as Kaggle's zip has them."""
    raw.mkdir(parents=True)
    if name == "flowers":
        drawn.flowers(raw, flowers.CLASSES, share, flowers.SIZES, seed=1)
    elif name == "plants":
        drawn.plants(raw, plants.CLASSES, share, plants.WIDTH, seed=1)
    else:
        draw_large(raw, share)
    shutil.rmtree(raw / "private", ignore_errors=True)


def draw_large(raw: Path, share: float) -> None:
    """Class folders of coloured noise: train/c0000/1.jpg, test/1.jpg."""
    rows, test = max(5 * LARGE_CLASSES, round(LARGE_ROWS * share)), round(LARGE_TEST * share)

    def picture(path: Path, label: int, seed: int) -> None:
        rng = np.random.default_rng([label, seed])
        cells = np.random.default_rng(label).integers(0, 200, (8, 8, 3)) + rng.integers(0, 56, (8, 8, 3))
        image = Image.fromarray(cells.astype(np.uint8)).resize((LARGE_SIDE, LARGE_SIDE), Image.Resampling.BICUBIC)
        path.write_bytes(encode(image, "jpeg", quality=drawn.QUALITY))

    for label in range(LARGE_CLASSES):
        (raw / "train" / f"c{label:04}").mkdir(parents=True)
    (raw / "test").mkdir()
    with ThreadPoolExecutor() as pool:
        paths = [raw / "train" / f"c{n % LARGE_CLASSES:04}" / f"{n}.jpg" for n in range(rows)]
        paths += [raw / "test" / f"{n}.jpg" for n in range(test)]
        labels = [n % LARGE_CLASSES for n in (*range(rows), *range(test))]
        list(pool.map(picture, paths, labels, range(rows + test)))
    ids = (path.relative_to(raw).as_posix() for path in sorted(paths[rows:]))
    write_csv(raw / "sample_submission.csv", ("id", "label"), ((one, "c0000") for one in ids))


def zip_and_remove(raw: Path, path: Path) -> None:
    """Zip the files without compression, as photos do not shrink, and remove them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(raw.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(raw).as_posix())
                file.unlink()


def stored_files(path: Path, archive: memoryview) -> dict[str, memoryview]:
    """Name -> content of the files of a zip without compression, without a copy.  archive: its bytes."""
    files = {}
    with zipfile.ZipFile(path) as zipped:
        for member in zipped.infolist():
            lengths = archive[member.header_offset + 26 : member.header_offset + 30]  # of name and extra field
            start = member.header_offset + 30 + sum(struct.unpack("<HH", lengths))
            files[member.filename] = archive[start : start + member.file_size]
    return files
