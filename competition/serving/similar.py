"""The training images most similar to a photo: those whose features in the exported network are nearest."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from competition.files.image_codec import decode, encode
from competition.input_pipeline.decoded_cache import cached_images
from competition.input_pipeline.decoded_rows import Pixels
from competition.prepare.prepared import Prepared
from competition.serving.engines import Engine

MOST = 2_000  # training images that are compared; a random choice of more
CHUNK = 8  # images whose features are computed at once; a request that arrives meanwhile waits for them
SHOWN = 112  # pixels per side of a picture on the page; smaller ones are enlarged by the browser


class TrainingImages:
    """The readable training images in the cache of decoded images. Not for several threads at once."""

    def __init__(self, rows: pd.DataFrame, pixels: Pixels, engine: Engine) -> None:
        """rows: of the part train, with id, label and problem, in the order of `pixels`."""
        self._ids, self._labels = rows["id"].to_numpy(str), rows["label"].to_numpy(int)
        self._pixels, self._engine = pixels, engine
        readable = np.flatnonzero(((rows["problem"] == "") & (rows["label"] >= 0)).to_numpy())
        self._waiting = np.random.default_rng(0).permutation(readable)[:MOST]
        self.compared = np.zeros(0, int)  # rows whose features are known
        self._features = np.zeros((0, 0), np.float32)

    def add_features(self) -> bool:
        """Compute the features of the next images. Returns False once all are known."""
        chunk, self._waiting = self._waiting[:CHUNK], self._waiting[CHUNK:]
        if not len(chunk):
            return False
        features = self._engine.features(self._pixels[chunk])
        self._features = np.concatenate([self._features.reshape(-1, features.shape[1]), features])
        self.compared = np.concatenate([self.compared, chunk])
        return True

    def most_similar(self, data: bytes, count: int) -> list[dict[str, object]]:
        """The `count` nearest of the compared images, the nearest first.  data: an encoded image.  Raises BadImage.

        Of each the row (of the training rows, in index order), id, class_name and similarity (cosine between features).
        """
        bundle, classes = self._engine.bundle, self._engine.bundle.classes
        if not len(self.compared):
            return []
        features = self._engine.features(decode(data, bundle.features_size, bundle.fit)[None])[0]
        similarities = self._features @ features
        nearest = np.argsort(-similarities, kind="stable")[:count]
        return [
            {
                "row": int(row),
                "id": self._ids[row],
                "class_name": classes[self._labels[row]],
                "similarity": float(cosine),
            }
            for row, cosine in zip(self.compared[nearest], similarities[nearest], strict=True)
        ]

    def picture(self, row: int) -> bytes | None:
        """A PNG of one training image; None if it is not among the compared ones."""
        if row not in self.compared:
            return None
        image = Image.fromarray(self._pixels[np.array([row])][0])
        image.thumbnail((SHOWN, SHOWN), Image.Resampling.LANCZOS)
        return encode(image, "png")


def cached_training_images(prepared: Prepared, engine: Engine, folder: Path) -> TrainingImages | None:
    """The training images in the cache in `folder`, at the size of the features; None without."""
    rows, bundle = prepared.part("train"), engine.bundle
    pixels = cached_images(folder, prepared.digest, rows["id"].to_numpy(str), bundle.features_size, bundle.fit)
    return None if pixels is None else TrainingImages(rows, pixels, engine)
