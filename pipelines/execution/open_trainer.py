"""Open the trainer of one member: select the Keras backend, open the device, and only then read the images."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.errors import MissingWeights, UserError, counted, first_few
from competition.config.params import Member, Train
from competition.ensemble.stored_predictions import ViewPredictions
from competition.ensemble.view_transforms import get_views
from competition.input_pipeline.decoded_cache import CacheBudget
from competition.prepare.extra_columns import encoded_columns
from competition.prepare.targets import check_training
from competition.workspace.dependencies import training_parts
from competition.workspace.features_and_soft_labels import feature_table, missing_tables, networks_of
from pipelines.terminal import hosts
from pipelines.terminal.job import Job, image_cache, start_backend
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar

if TYPE_CHECKING:
    from competition.input_pipeline.labelled_images import Images
    from competition.training.device import Device
    from competition.training.engine import Engine
    from competition.training.features import FeatureEngine, FeatureSource
    from competition.training.network_trainer import NetworkTrainer
    from competition.training.trainer import Trainer
    from competition.tuning.trials import TrialRunner


def start_device(job: Job) -> "Device":
    """Start the Keras backend and open the device. Call it before any other use of TensorFlow.

    Reading images starts TensorFlow, and a started TensorFlow accepts neither logical devices nor memory growth.
    """
    start_backend(job)
    from competition.training.device import open_device

    device = open_device(job.params.device, job.path("cache", "compiled"))
    job.hosts.join(job.work)
    return device


def read_images(
    job: Job, member: Member, parts: Sequence[str], title: str, cache: CacheBudget | None = None
) -> "Images":
    """All images of these parts of the index (train, external, test) at the member's size, with a progress bar.

    cache: for the decoded images; None = that of the parameters.
    """
    from competition.input_pipeline.labelled_images import load_images

    size, fit, budget = member.image_size, job.params.prepare.fit, cache or image_cache(job)
    with Bar(None, f"{title}: decoding images") as bar:
        return load_images(job.prepared, parts, size, fit, budget, bar.update_to)


@dataclass(frozen=True)
class TrainerInputs:
    """What a trainer works with besides its member and its device."""

    parts: Sequence[str] | None = None  # of the index; None = all that the member is trained on
    images: "Images | None" = None  # that are decoded already; None reads them
    select: "Callable[[Images], Images]" = lambda images: images  # reduces the images before the engine is built
    soft_labels: Mapping[int, ViewPredictions] | None = None  # see FoldRows
    alive: Callable[[], None] = lambda: None  # heartbeat, see Trainer
    engine: "Engine | None" = None  # of this member, compiled earlier


def open_network_trainer(
    job: Job, member: Member, title: str, device: "Device", inputs: TrainerInputs = TrainerInputs()
) -> "NetworkTrainer":
    """The trainer of a `member` whose network is trained, with its images decoded and its engine built.  title: in messages."""
    prepared = job.prepared
    targets = prepared.competition.targets
    check_training(targets.kind, title, member.train)
    from competition.training import engines
    from competition.training.fold_rows import FoldRows
    from competition.training.network_trainer import NetworkTrainer

    parts = inputs.parts or training_parts(member)
    images = inputs.images or inputs.select(read_images(job, member, parts, title))
    classes, batch, plugins = len(prepared.competition.classes), job.params.predict.batch, job.params.plugins
    rows = FoldRows(member, images, classes, targets, inputs.soft_labels)
    with errors_named(job, member, title):
        engine = inputs.engine or engines.engine_of(member, classes, batch, device, plugins, targets)
    return NetworkTrainer(rows, prepared.metric, engine, device, plugins, inputs.alive)


def open_trainer(
    job: Job, member: Member, title: str, device: "Device", inputs: TrainerInputs = TrainerInputs()
) -> "Trainer":
    """What trains and predicts the fold models of a member: a NetworkTrainer, or a HeadTrainer on stored features.

    inputs.parts: with "test" the test rows can be predicted, too.
    """
    if member.head is None:
        return open_network_trainer(job, member, title, device, inputs)
    if hosts.are_joined():
        raise UserError(f"{title}: a head is fitted on one host, and several are connected; train it on one of them")
    from competition.input_pipeline.labelled_images import with_labels
    from competition.training.features import concatenated, stored_features
    from competition.training.fold_rows import FoldRows
    from competition.training.head_trainer import HeadTrainer

    prepared, workspace = job.prepared, job.workspace
    parts = inputs.parts or training_parts(member)
    # The views that the head is fitted to, that of its score, and those it predicts under.
    views = list(dict.fromkeys([*member.head.views, "identity", *job.params.views_of(member)]))
    wanted = WantedFeatures(parts, views)
    ids = np.concatenate([prepared.part(part)["id"].to_numpy(str) for part in parts])
    sources: list[FeatureSource] = []
    for network in networks_of(workspace, member):
        if missing_tables(workspace, network, parts, wanted.views):
            engine = partial(engine_of, job, network, title, device)
            store_missing(job, network, title, engine, wanted, lambda done, count: inputs.alive())
        by_view = {}
        for view in wanted.views:
            files = [feature_table(workspace, network, part, view).file for part in parts]
            by_view[view] = np.concatenate([np.load(file, mmap_mode="r", allow_pickle=False) for file in files])
        sources.append(stored_features(ids, by_view))
    if member.head.columns:
        values = encoded_columns(prepared.folder, member.head.columns, ids)
        sources.append(stored_features(ids, dict.fromkeys(wanted.views, values)))
    images = inputs.images or inputs.select(with_labels(prepared, [part for part in parts if part != "test"]))
    rows = FoldRows(member, images, len(prepared.competition.classes), prepared.competition.targets)
    return HeadTrainer(rows, prepared.metric, concatenated(sources), inputs.alive)


def engine_of(job: Job, network: Member, title: str, device: "Device") -> "FeatureEngine":
    """The frozen network of a member. Raises UserError with the name of the member."""
    from competition.training.features import feature_engine

    with errors_named(job, network, title):
        return feature_engine(network, device, job.params.predict.batch, job.params.plugins)


@dataclass(frozen=True)
class WantedFeatures:
    parts: Sequence[str]  # of the index
    views: Sequence[str]
    keeps_images: bool = False  # the decoded images stay in the cache, for a second pass


def store_missing(
    job: Job,
    network: Member,
    title: str,
    engine: "Callable[[], FeatureEngine]",
    wanted: WantedFeatures,
    progress: Callable[[int, int], None],
) -> None:
    """Compute the features of a network that are missing, in one pass over the images of each part for all its views.

    progress: see store_features.
    """
    from filelock import FileLock

    from competition.training.features import store_features

    folder = job.path("features")
    with FileLock(folder / "features.lock"):  # another process may compute the same now
        missing = missing_tables(job.workspace, network, wanted.parts, wanted.views)
        compiled = engine() if missing else None
        cache = None if wanted.keeps_images else CacheBudget(folder, 0, 0)
        for part, tables in missing.items():
            assert compiled is not None
            images = read_images(job, network, [part], title, cache)
            count = len(images.ids)
            with Bar(None, f"{title}: features of {part} images") as bar:

                def show(done: int, total: int, bar: Bar = bar) -> None:
                    progress(done, total)
                    bar.update_to(done, total)

                views = get_views([table.view for table in tables], job.params.plugins)
                files = dict(zip(views, [table.file for table in tables], strict=True))
                seconds = store_features(compiled, images, files, show)
            if count:  # photos of one's own may have no test images
                what = f"{counted(count, f'{part} image')} under {first_few([table.view for table in tables])}"
                job.echo(f"{title}: features of {what} took {seconds:.1f} s")
            facts = {"rows": count, "seconds_per_1000": 1000 * seconds / len(tables) / max(count, 1)}
            for table in tables:
                computed = [table.file], facts
                job.cached(f"{title}: features under {table.view}", table.manifest, table.depends, lambda _: computed)  # noqa: B023


def open_trial_runner(job: Job, name: str) -> "TrialRunner":
    """Runner of the trials of a member. The device is opened with the first trial."""
    from competition.tuning.trials import TrialRunner

    device = functools.cache(partial(start_device, job))
    folds = [-1, *job.params.tune.folds]  # -1: in no fold

    # No trial sees a row of another fold.
    inputs = TrainerInputs(
        select=lambda images: replace(images, readable=images.readable & np.isin(images.folds, folds))
    )
    return TrialRunner(
        job.params.members[name],
        job.params,
        lambda member, images: open_trainer(job, member, f"tune {name}", device(), replace(inputs, images=images)),
    )


def draw_first_batch(job: Job, trainer: "NetworkTrainer", fold: int, train: Train, most: int, sheet: Path) -> None:
    """Draw the first `most` images of a fold's first training batch, augmented, with their targets."""
    from competition.report.pictures import contact_sheet

    images, targets, _ = trainer.first_batch(fold, train)
    classes, captions = job.prepared.competition.classes, []
    for row in targets[:most]:  # (C,): the largest with its class, or the value of a regression
        captions.append(f"{row[0]:.4g}" if len(row) == 1 else f"{classes[int(row.argmax())]} {row.max():.2f}")
    contact_sheet(images[:most], captions, sheet)


@contextmanager
def errors_named(job: Job, network: Member, title: str) -> Iterator[None]:
    """Errors about a network in this block name its member; those of missing ImageNet weights, the SET that states files."""
    try:
        yield
    except MissingWeights as error:
        wanted = (network.architecture, network.alpha, "imagenet")
        members = job.params.members.items()
        names = [name for name, one in members if (one.architecture, one.alpha, one.weights) == wanted]
        values = " ".join(f"members.{name}.weights=FILE" for name in names)
        ready = f', or state its path: SET="{values}"' if names else ""
        raise UserError(f"{display_path(job.options.params)}: {error}{ready}") from error
    except UserError as error:
        raise UserError(f"{title}: {error}") from error
