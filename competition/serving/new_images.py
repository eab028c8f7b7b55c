"""New images on the way of the test images: read, decoded alike, predicted by the fold models of the blend or a member."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.digests import digest_of
from competition.config.errors import UserError, first_few
from competition.config.params import Member
from competition.ensemble.chain import apply_chain
from competition.ensemble.predictions import ViewPredictions, mean_over_folds
from competition.prepare.adapters.files import image_paths
from competition.prepare.decoding import BadImage, Fit, decode, encode_png, normalized
from competition.serving.selection import select
from competition.workspace.features import networks_of
from competition.workspace.studies import network_digest
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from competition.images.labelled_images import Images
    from competition.training.device import Device
    from competition.training.features import LiveFeatures
    from competition.training.scorer import FoldScorer

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
    """The images that can be read, as for read_new_images, and the reason for each of the others by its name."""
    names, data, problems = [], [], {}
    for number, image in enumerate(images):
        name = str(image) if isinstance(image, str | Path) else f"image {number}"
        try:
            encoded = normalized(_encoded(image))
            decode(encoded, 32, "squash")  # a truncated file may have a valid header
        except (BadImage, OSError) as error:
            problems[name] = str(error.strerror if isinstance(error, OSError) else error)
        else:
            names.append(name)
            data.append(encoded)
    return EncodedImages(tuple(names), tuple(data)), problems


def _encoded(image: NewImage) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        return Path(os.path.expanduser(image)).read_bytes()
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))):
        raise UserError(
            f"an array of shape {pixels.shape} and type {pixels.dtype} was found; expected uint8 pixels from 0 to 255 of "
            "shape (H, W), (H, W, 3) or (H, W, 4)"
        )
    return encode_png(pixels)


class NewImagePredictor:
    """Predicts new images by the fold models of a workspace. Networks are compiled once and kept for the next call."""

    def __init__(self, workspace: Workspace, open_device: "Callable[[], Device]") -> None:
        """open_device: called before the first network is built."""
        self._workspace, self._open_device = workspace, open_device
        self._scorers: dict[str, FoldScorer] = {}  # by the digest of the member
        self._features: dict[str, LiveFeatures] = {}  # of frozen-feature members, by the digest of the network

    def check(self, member: str) -> None:
        """Raise UserError if the blend (member "") or this member cannot predict new images."""
        select(self._workspace, member, ())

    def predict(self, images: EncodedImages, member: str = "") -> tuple[np.ndarray, np.ndarray]:
        """(N, C) probabilities or (N, 1) values, and what the decision rule makes of them: see Chain.

        Views, mean over the fold models, TTA policy, blend and decision rule are those of the test rows.
        member: "" = the blend; a member alone has its views of the blend, and no decision rule.
        Raises UserError as `select`.
        """
        selection = select(self._workspace, member, ())
        members: dict[str, ViewPredictions] = {}
        decoded_at: dict[int, Images] = {}
        for name, views in selection.chain.used_views().items():
            trained = selection.members[name]
            size = trained.image_size
            if size not in decoded_at:
                decoded_at[size] = _decoded(images, size, self._workspace.params.prepare.fit)
            scorer = self._scorer(trained, decoded_at[size])
            members[name] = _mean_prediction(scorer, decoded_at[size], selection.weights[name], views)
        return apply_chain(selection.chain, members)

    def _scorer(self, member: Member, images: "Images") -> "FoldScorer":
        """The compiled network of a member."""
        key = digest_of(member)
        if key not in self._scorers:
            device = self._open_device()  # before anything that imports Keras
            from competition.training.features import LiveFeatures, concatenated, feature_engine
            from competition.training.fold_rows import FoldRows
            from competition.training.head_trainer import HeadTrainer
            from competition.training.trainer import Trainer

            competition, batch = self._workspace.prepared.competition, self._workspace.params.predict.batch
            member = without_download(member) if member.head is None else member
            rows = FoldRows(member, images, len(competition.classes), competition.targets)
            if member.head is None:
                self._scorers[key] = Trainer(rows, competition.metric, device, batch)
            else:
                networks = networks_of(self._workspace, member)
                if any(network.image_size != member.image_size for network in networks):
                    raise UserError(
                        "a member has features of networks of several image sizes, and new images are decoded at one; "
                        "predict them by another member, or blend without it"
                    )
                digests = [network_digest(network) for network in networks]
                for digest, network in zip(digests, networks, strict=True):
                    if digest not in self._features:
                        self._features[digest] = LiveFeatures(feature_engine(network, device, batch))
                features = concatenated([self._features[digest] for digest in digests])
                self._scorers[key] = HeadTrainer(rows, competition.metric, features)
        return self._scorers[key]


def without_download(member: Member) -> Member:
    """The member without initial ImageNet weights, which the weights of its fold models replace."""
    return replace(member, weights="none") if member.weights == "imagenet" else member


def _decoded(images: EncodedImages, size: int, fit: Fit) -> "Images":
    """The images at the size of a member; the ids are their numbers, because a path may appear twice."""
    from competition.images.labelled_images import Images

    count = len(images.data)
    pixels = np.zeros((count, size, size, 3), np.uint8)
    for number, data in enumerate(images.data):
        pixels[number] = decode(data, size, fit)
    unknown = np.full(count, -1)
    return Images(np.arange(count).astype(str), pixels, unknown, unknown, np.ones(count, bool))


def _mean_prediction(
    scorer: "FoldScorer", images: "Images", weights: Mapping[str, Path], views: Sequence[str]
) -> ViewPredictions:
    """The mean over fold models of their predictions under these views, as for test rows.  weights: weights.npz files."""
    from competition.training.checkpoint import load_arrays

    rows = np.arange(len(images.ids))
    return mean_over_folds([scorer.predict(load_arrays(path), images, rows, views) for path in weights.values()])
