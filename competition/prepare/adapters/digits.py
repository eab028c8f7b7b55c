"""scikit-learn's 1,797 handwritten digits with the file layout of Kaggle's flower competition.

As they are (`digits`) every network gets nearly all of them right. As bad photos (`noisy_digits`) several percent stay wrong,
so that views, blends and tuning have something to gain. Later stages treat both as a downloaded competition. `private/` holds
the solution, which Kaggle does not publish.
"""

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from competition.files.image_codec import encode
from competition.prepare import record_files
from competition.prepare.adapter_types import Competition, Settings
from competition.prepare.adapters.flowers import label_competition
from competition.prepare.adapters.flowers import rows as rows
from competition.prepare.adapters.tables import write_csv
from competition.prepare.tfrecord_format import Record

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZE = 32  # pixels: each of the 8 x 8 becomes 4 x 4, without loss
NOISY = "noisy_digits"  # name of the adapter
FOLDER = f"tfrecords-png-{SIZE}x{SIZE}"
TEST_SHARE = 0.25
PUBLIC_SHARE = 0.3  # of the test rows, as on a leaderboard
SHARDS = {"train": (0.31, 0.27, 0.22, 0.14, 0.06), "test": (0.5, 0.36, 0.14)}  # uneven, as in real competitions


def download(raw: Path, settings: Settings, fetch: Callable[[str, Path], None]) -> None:
    """Generate the raw files; `fetch` is not used."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    grey, labels = load_digits(return_X_y=True)
    small = (grey.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    if settings.adapter == NOISY:
        pictures = [
            bad_photo(Image.fromarray(one), np.random.default_rng([settings.seed, n])) for n, one in enumerate(small)
        ]
    else:
        pictures = [Image.fromarray(picture) for picture in small.repeat(SIZE // 8, 1).repeat(SIZE // 8, 2)]
    ids = [blake2b(f"digit {n}".encode(), digest_size=5).hexdigest()[:9] for n in range(len(labels))]
    numbers = np.arange(len(labels))
    train, test = train_test_split(numbers, test_size=TEST_SHARE, stratify=labels, random_state=settings.seed)
    for part, chosen in (("train", train), ("test", test)):
        cuts = (np.cumsum(SHARDS[part])[:-1] * len(chosen)).astype(int)
        for number, shard in enumerate(np.split(chosen, cuts)):
            path = raw / FOLDER / part / f"{number:02}-{SIZE}x{SIZE}-{len(shard)}.tfrec"
            labelled = part == "train"
            record_files.write_shard(
                str(path),
                (Record(ids[n], int(labels[n]) if labelled else None, encode(pictures[n], "png")) for n in shard),
            )
    public, _ = train_test_split(test, train_size=PUBLIC_SHARE, stratify=labels[test], random_state=settings.seed)
    in_public = set(public.tolist())
    order = sorted(test.tolist(), key=lambda n: ids[n])
    write_csv(raw / "classes.csv", ("label", "name"), enumerate(NAMES))
    write_csv(raw / "sample_submission.csv", ("id", "label"), ((ids[n], 0) for n in order))
    solution = ((ids[n], labels[n], "Public" if n in in_public else "Private") for n in order)
    write_csv(raw / "private" / "solution.csv", ("id", "label", "usage"), solution)


def bad_photo(digit: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The digit tilted, off centre, in another size, behind two strokes, in poor light, with noise.  Returns SIZE x SIZE pixels."""
    tilt, zoom, (x, y) = np.radians(rng.normal(0, 12)), 1 / rng.uniform(0.6, 1.0), rng.uniform(-4, 4, 2)
    cos, sin, middle = np.cos(tilt) * zoom, np.sin(tilt) * zoom, SIZE / 2
    left, top = middle + x, middle + y  # where the middle of the digit goes
    affine = (cos, sin, middle - cos * left - sin * top, -sin, cos, middle + sin * left - cos * top)
    large = digit.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    placed = large.transform((SIZE, SIZE), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    strokes = Image.new("L", (SIZE, SIZE))
    for _ in range(2):
        grey = int(rng.integers(100, 256))
        ImageDraw.Draw(strokes).line(tuple(rng.uniform(0, SIZE, 4)), fill=grey, width=2)
    contrast, light, noise = rng.uniform(0.35, 1.0), rng.uniform(0, 60), rng.normal(0, 28, (SIZE, SIZE))
    pixels = np.maximum(np.asarray(placed), np.asarray(strokes)) * contrast + light + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def describe(raw: Path, settings: Settings) -> Competition:
    return label_competition(settings, NAMES)
