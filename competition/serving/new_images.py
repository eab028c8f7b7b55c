"""New images on the way of the test images: read, decoded alike, predicted by the fold models of the blend or a member."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.digests import digest_of
from competition.config.errors import UserError, first_few
from competition.config.params import Member
from competition.ensemble.chain import apply_chain
from competition.ensemble.mixing import mean_over_folds
from competition.ensemble.stored_predictions import ViewPredictions
from competition.files.image_codec import BadImage, decode, encode, normalized
from competition.prepare.adapters.image_paths import image_paths
from competition.serving.served_models import select
from competition.workspace.features_and_soft_labels import networks_of
from competition.workspace.studies import network_dependencies
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from competition.input_pipeline.labelled_images import Images
    from competition.training.device import Device
    from competition.training.features import LiveFeatures
    from competition.training.trainer import Trainer

NewImage = str | Path | bytes | np.ndarray


@dataclass(frozen=True)
class EncodedImages:
    """names: the path of each image, or "image 3" for one without a path.  data: the encoded images, normalized."""

    names: tuple[str, ...]
    data: tuple[bytes, ...]


def read_new_images(images: NewImage | Sequence[NewImage]) -> EncodedImages:
    """Read paths, encoded bytes and arrays of shape (H, W), (H, W, 3) or (H, W, 4), uint8.

    images: a list of them, an array (N, H, W, 3), an array of paths, or one path of an image or of a folder of images.
    Raises UserError with the number and the first names of images that cannot be read.
    """
    if isinstance(images, str | Path):
        folder = Path(images)
        images = [folder / path for path in image_paths(folder)] if folder.is_dir() else [folder]
    elif isinstance(images, bytes) or (
        isinstance(images, np.ndarray) and images.ndim < 4 and images.dtype.kind not in "OU"
    ):
        raise UserError("one image was found where a list of images was expected; put it into a list: [image]")
    listed = list(images)
    readable, problems = read_readable_images(listed)
    if problems:
        reasons = [f"{name} ({reason})" for name, reason in problems.items()]
        raise UserError(f"{len(problems):,} of {len(listed):,} images cannot be read: {first_few(reasons, 3)}")
    return readable


def read_readable_images(images: Sequence[NewImage]) -> tuple[EncodedImages, dict[str, str]]:
    """The images that can be read, as for read_new_images, and the reason for each of the others by its name.

    Raises UserError for an array of another type or shape.
    """
    names, data, problems = [], [], {}
    for number, image in enumerate(images):
        name = str(image) if isinstance(image, str | Path) else f"image {number}"
        try:
            if isinstance(image, bytes):
                encoded = image
            elif isinstance(image, str | Path):
                encoded = Path(os.path.expanduser(image)).read_bytes()
            else:
                pixels = np.asarray(image)
                is_colour = pixels.ndim == 3 and pixels.shape[2] in (3, 4)
                if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or is_colour):
                    raise UserError(
                        f"an array of shape {pixels.shape} and type {pixels.dtype} was found; expected uint8 pixels from 0 "
                        "to 255 of shape (H, W), (H, W, 3) or (H, W, 4)"
                    )
                encoded = encode(pixels, "png", compress_level=1)
            encoded = normalized(encoded)
            decode(encoded, 32, "squash")  # a truncated file may have a valid header
        except (BadImage, OSError) as error:
            problems[name] = str(error.strerror if isinstance(error, OSError) else error)
        else:
            names.append(name)
            data.append(encoded)
    return EncodedImages(tuple(names), tuple(data)), problems


@dataclass(eq=False, repr=False)  # an estimator prints it, and parameters may hold addresses with passwords
class NewImagePredictor:
    """Predicts new images by the fold models of a workspace. Networks are compiled once and kept for the next call."""

    workspace: Workspace
    open_device: "Callable[[], Device]"  # called before the first network is built
    _trainers: "dict[str, Trainer]" = field(default_factory=dict)  # by the digest of the member
    # Of frozen-feature members, by the digest of the network.
    _features: "dict[str, LiveFeatures]" = field(default_factory=dict)

    def predict(self, images: EncodedImages, member: str = "") -> tuple[np.ndarray, np.ndarray]:
        """(N, C) probabilities or (N, 1) values, and (N,) int labels by the decision rule, of several labels (N, C) bool.

        Views, mean over the fold models, TTA policy, blend and decision rule are those of the test rows.
        member: "" = the blend; a member alone has its weights of the views in the blend, and the default decision rule.
        Raises UserError as `select`.
        """
        from competition.input_pipeline.labelled_images import Images

        selection = select(self.workspace, member)
        members: dict[str, ViewPredictions] = {}
        decoded_at: dict[int, Images] = {}
        rows = np.arange(len(images.data))
        for name in selection.chain.blend.used:
            views = list(selection.chain.policies[name])
            size = selection.members[name].image_size
            if size not in decoded_at:
                pixels = np.zeros((len(rows), size, size, 3), np.uint8)
                for number, data in enumerate(images.data):
                    pixels[number] = decode(data, size, self.workspace.params.prepare.fit)
                unknown = np.full(len(rows), -1)
                # The ids are numbers, because a path may appear twice.
                decoded_at[size] = Images(rows.astype(str), pixels, unknown, unknown, np.ones(len(rows), bool))
            trainer = self._trainer_of(selection.members[name], decoded_at[size])
            from competition.training.checkpoint import load_arrays  # after the trainer has started the device

            weights = selection.weights[name].values()
            members[name] = mean_over_folds(
                [trainer.predict(load_arrays(path), decoded_at[size], rows, views) for path in weights]
            )
        return apply_chain(selection.chain, members)

    def _trainer_of(self, member: Member, images: "Images") -> "Trainer":
        """The compiled network of a member."""
        key = digest_of(member)
        if key not in self._trainers:
            device = self.open_device()  # before anything that imports Keras
            from competition.training.engines import engine_of
            from competition.training.features import LiveFeatures, concatenated, feature_engine
            from competition.training.fold_rows import FoldRows
            from competition.training.head_trainer import HeadTrainer
            from competition.training.network_trainer import NetworkTrainer

            prepared, batch = self.workspace.prepared, self.workspace.params.predict.batch
            metric, plugins, classes = prepared.metric, self.workspace.params.plugins, len(prepared.competition.classes)
            member = member.without_pretrained_weights if member.head is None else member
            rows = FoldRows(member, images, classes, prepared.competition.targets)
            if member.head is None:
                engine = engine_of(member, classes, batch, device, plugins, rows.targets)
                self._trainers[key] = NetworkTrainer(rows, metric, engine, device, plugins)
            else:
                if member.head.columns:
                    raise UserError(
                        "a member has head.columns, which new photos do not have; predict them by another member, or blend without it"
                    )
                networks = networks_of(self.workspace, member)
                if any(network.image_size != member.image_size for network in networks):
                    raise UserError(
                        "a member has networks of several image sizes; predict new images by another member, or blend without it"
                    )
                digests = [digest_of(network_dependencies(network)) for network in networks]
                for digest, network in zip(digests, networks, strict=True):
                    if digest not in self._features:
                        self._features[digest] = LiveFeatures(feature_engine(network, device, batch, plugins), plugins)
                features = concatenated([self._features[digest] for digest in digests])
                self._trainers[key] = HeadTrainer(rows, metric, features)
        return self._trainers[key]
