"""Features of a network that is not trained: one pass over the images of a part, under several views, stored by id."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import keras
import numpy as np

from competition.config.params import TIMM, Member
from competition.config.plugins import NO_PLUGINS, Plugins
from competition.ensemble.stored_predictions import positions
from competition.ensemble.view_transforms import View, get_views
from competition.files.manifest import atomic_write
from competition.input_pipeline.batches import RowsBegun, prediction_batches
from competition.input_pipeline.labelled_images import Images
from competition.training.device import Device, prediction_batch_size, resolved_precision
from competition.training.engine import CompiledIn, Engine
from competition.training.engines import make_engine
from competition.training.model import build
from competition.training.timm_features import TimmEngine

CHUNK = 2_048  # rows that are stored at once: a kill costs at most the pass over so many images

FeatureEngine = Engine | TimmEngine
# (images, row numbers (n,), view) -> (n, F) float32
FeatureSource = Callable[[Images, np.ndarray, str], np.ndarray]


def feature_network(member: Member, plugins: Plugins = NO_PLUGINS) -> keras.Model:
    """The member's network without its last layer: images (B, H, W, 3) of 0..255 -> features (B, F) float32.

    They are what the last layer reads, and what else the same pass gives (docs/frozen_features.md): the mean of the patches, where
    the last layer reads the class token of a transformer, or the means of the stage before the last reduction of a convolutional
    network.
    """
    member = replace(member, train_size=0, train=replace(member.train, low_resolution_epochs=0))
    network = build(member, 2, plugins=plugins)
    steps, parts = network.operations, [network.get_layer("logits").input]
    position = next((number for number, step in enumerate(steps) if isinstance(step, keras.Model)), None)
    if position is not None:
        backbone, after = steps[position], steps[position + 1]
        output = after.input  # of the backbone in this network; `backbone.output` is inside it
        if len(output.shape) == 3 and not isinstance(after, keras.layers.GlobalAveragePooling1D):
            parts.append(keras.ops.mean(output[:, 1:], axis=1))
        elif len(output.shape) == 4:
            inner = [layer.output for layer in backbone.layers if not isinstance(layer, keras.layers.InputLayer)]
            # Not the pixels themselves.
            images = [each for each in inner if len(each.shape) == 4 and each.shape[-1] > 3]
            stages = [each for each in images if each.shape[1] > backbone.output.shape[1]]
            if stages:
                both = keras.Model(backbone.inputs, [backbone.output, stages[-1]])(steps[position - 1].output)
                parts = [keras.ops.mean(keras.ops.cast(one, "float32"), axis=(1, 2)) for one in both]
    features = keras.ops.concatenate([keras.ops.cast(part, "float32") for part in parts], axis=1)
    model = keras.Model(network.inputs, features, name=network.name)
    model.trainable = False
    return model


def feature_engine(member: Member, device: Device, predict_batch: int, plugins: Plugins = NO_PLUGINS) -> FeatureEngine:
    """The network of a frozen-feature member; its `probabilities` are the features."""
    if member.architecture.startswith(TIMM):
        return TimmEngine(member, predict_batch)
    precision = resolved_precision(member.train.precision, device)
    member = replace(member, train=replace(member.train, precision=precision))
    batch = prediction_batch_size(predict_batch, member.image_size, device)
    # The output of a regression is what the network computes, without a softmax.
    return make_engine(lambda: feature_network(member, plugins), device, CompiledIn(batch, batch, target="regression"))


def feature_width(engine: FeatureEngine) -> int:
    """F, the number of features of an image."""
    return engine.width if isinstance(engine, TimmEngine) else int(engine.model.output_shape[-1])


def compute_features(
    engine: FeatureEngine, images: Images, rows: np.ndarray, views: Sequence[View], begin: RowsBegun = lambda _: None
) -> np.ndarray:
    """Features of these rows, (n, V, F) float32; zeros for an unreadable image."""
    readable = rows[images.readable[rows]]
    features = np.zeros((len(rows), len(views), feature_width(engine)), np.float32)
    if len(readable):
        batches = prediction_batches(images.pixels, readable, engine.predict_batch, begin)
        features[images.readable[rows]] = engine.probabilities(batches, len(readable), views)
    return features


def store_features(
    engine: FeatureEngine, images: Images, files: Mapping[View, Path], progress: Callable[[int, int], None]
) -> float:
    """Write the features of all rows under each view, (N, F) float16, and return the seconds of the pass.

    files: view -> .npy file.  What an interrupted pass has written beside them is used.
    progress: called with the rows that are done and all rows.
    """
    count, views, seconds = len(images.ids), list(files), 0.0
    starts = range(0, count, CHUNK)
    chunks = {view: [path.with_name(f"{path.stem}-{start:08}.npy") for start in starts] for view, path in files.items()}
    for number, start in enumerate(starts):
        rows = np.arange(start, min(start + CHUNK, count))
        chunk_files = [chunks[view][number] for view in views]
        if not all(path.is_file() for path in chunk_files):
            started = time.perf_counter()
            in_chunk = lambda begun, start=start: progress(start + begun, count)  # noqa: E731
            features = compute_features(engine, images, rows, views, in_chunk)
            seconds += time.perf_counter() - started
            for position, path in enumerate(chunk_files):
                with atomic_write(path) as temporary:
                    np.save(temporary, features[:, position].astype(np.float16))
        progress(int(rows[-1]) + 1, count)
    for view, path in files.items():
        parts = [np.load(chunk, allow_pickle=False) for chunk in chunks[view]]
        with atomic_write(path) as temporary:
            np.save(temporary, np.concatenate(parts) if parts else np.zeros((0, feature_width(engine)), np.float16))
        for chunk in chunks[view]:
            chunk.unlink()
    return seconds


def stored_features(ids: np.ndarray, tables: Mapping[str, np.ndarray]) -> FeatureSource:
    """ids: (N,) str.  tables: view -> (N, F) float16, of the same ids."""
    return lambda images, rows, view: np.asarray(tables[view][positions(ids, images.ids[rows])], np.float32)


def concatenated(sources: Sequence[FeatureSource]) -> FeatureSource:
    """The features of several networks, and columns of tables, side by side."""
    return lambda images, rows, view: np.concatenate([source(images, rows, view) for source in sources], axis=1)


@dataclass
class LiveFeatures:
    """Features of new images, computed when they are needed. A FeatureSource.

    Those of the last images are kept, because all fold models and heads of a network read the same ones.
    """

    engine: FeatureEngine
    plugins: Plugins
    _images: Images | None = None
    _tables: dict[tuple[str, bytes], np.ndarray] = field(default_factory=dict)

    def __call__(self, images: Images, rows: np.ndarray, view: str) -> np.ndarray:
        if images is not self._images:
            self._images, self._tables = images, {}
        key = (view, rows.tobytes())
        if key not in self._tables:
            self._tables[key] = compute_features(self.engine, images, rows, get_views([view], self.plugins))[:, 0]
        return self._tables[key]
