"""Open a Trainer for one member: select the Keras backend, open the device, and only then read the images."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from competition.config.errors import MissingWeights, UserError, counted, first_few
from competition.config.params import ExcludedFolds, Member
from competition.ensemble.predictions import ViewPredictions
from competition.images.decoded_cache import CacheBudget
from competition.preflight.planning import Sizes, Speed
from competition.prepare.columns import encoded_columns
from competition.prepare.targets import check_training
from competition.workspace.dependencies import training_parts
from competition.workspace.features_and_soft_labels import feature_table, missing_tables, networks_of
from pipelines.terminal import hosts
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar
from pipelines.terminal.runner import Job, image_cache, start_backend

if TYPE_CHECKING:
    from competition.images.labelled_images import Images
    from competition.training.device import Device
    from competition.training.engine import Engine
    from competition.training.features import FeatureEngine, FeatureSource
    from competition.training.trainer import FoldScorer, Trainer
    from competition.tuning.trials import TrialRunner


STEPS_MEASURED = 12  # per epoch, at most


def start_device(job: Job) -> "Device":
    """Start the Keras backend and open the device. Call it before any other use of TensorFlow.

    Reading images starts TensorFlow, and a started TensorFlow accepts neither logical devices nor memory growth.
    """
    start_backend(job)
    from competition.training.device import open_device

    device = open_device(job.params.device, job.path("cache", "compiled"))
    hosts.join(job.work)
    return device


def read_images(
    job: Job, member: Member, parts: Sequence[str], title: str, cache: CacheBudget | None = None
) -> "Images":
    """All images of these parts of the index (train, external, test) at the member's size, with a progress bar.

    cache: for the decoded images; None = that of the parameters.
    """
    from competition.images.labelled_images import load_images

    size, fit, budget = member.image_size, job.params.prepare.fit, cache or image_cache(job)
    with Bar(None, f"{title}: decoding images") as bar:
        return load_images(job.prepared, parts, size, fit, budget, bar.update_to)


@dataclass(frozen=True)
class TrainerInputs:
    """What a trainer works with besides its member and its device."""

    parts: Sequence[str] | None = None  # of the index; None = all that the member is trained on
    images: "Images | None" = None  # that are decoded already; None reads them
    select: "Callable[[Images], Images]" = lambda images: images  # reduces the images before the engine is built
    soft_labels: Mapping[ExcludedFolds, ViewPredictions] | None = None  # see FoldRows
    alive: Callable[[], None] = lambda: None  # heartbeat, see Trainer
    engine: "Engine | None" = None  # of this member, compiled earlier


def open_trainer(
    job: Job, member: Member, title: str, device: "Device", inputs: TrainerInputs = TrainerInputs()
) -> "Trainer":
    """Trainer of a `member` whose network is trained, with its images decoded and its engine built.  title: in messages."""
    prepared = job.prepared
    targets = prepared.competition.targets
    check_training(targets.kind, title, member.train)
    from competition.training.fold_rows import FoldRows
    from competition.training.trainer import Trainer

    parts = inputs.parts or training_parts(member)
    images = inputs.images or inputs.select(read_images(job, member, parts, title))
    rows = FoldRows(member, images, len(prepared.competition.classes), targets, inputs.soft_labels)
    with errors_named(job, member, title):
        batch = job.params.predict.batch
        return Trainer(rows, prepared.competition.metric, device, batch, inputs.alive, inputs.engine)


def open_scorer(
    job: Job, member: Member, title: str, device: "Device", inputs: TrainerInputs = TrainerInputs()
) -> "FoldScorer":
    """What trains and predicts the fold models of a member: a Trainer, or a HeadTrainer on stored features.

    inputs.parts: with "test" the test rows can be predicted, too.
    """
    if member.head is None:
        return open_trainer(job, member, title, device, inputs)
    if hosts.are_joined():
        raise UserError(f"{title}: a head is fitted on one host, and several are connected; train it on one of them")
    from competition.images.labelled_images import with_labels
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
        by_view = {
            view: np.concatenate([feature_table(workspace, network, part, view).load() for part in parts])
            for view in wanted.views
        }
        sources.append(stored_features(ids, by_view))
    if member.head.columns:
        values = encoded_columns(prepared.folder, member.head.columns, ids)
        sources.append(stored_features(ids, dict.fromkeys(wanted.views, values)))
    images = inputs.images or inputs.select(with_labels(prepared, [part for part in parts if part != "test"]))
    rows = FoldRows(member, images, len(prepared.competition.classes), prepared.competition.targets)
    return HeadTrainer(rows, prepared.competition.metric, concatenated(sources), inputs.alive)


def engine_of(job: Job, network: Member, title: str, device: "Device") -> "FeatureEngine":
    """The frozen network of a member. Raises UserError with the name of the member."""
    from competition.training.features import feature_engine

    with errors_named(job, network, title):
        return feature_engine(network, device, job.params.predict.batch)


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

                seconds = store_features(compiled, images, {table.view: table.file for table in tables}, show)
            if count:  # photos of one's own may have no test images
                what = f"{counted(count, f'{part} image')} under {first_few([table.view for table in tables])}"
                job.echo(f"{title}: features of {what} took {seconds:.1f} s")
            facts = {"rows": count, "seconds_per_1000": 1000 * seconds / len(tables) / max(count, 1)}
            for table in tables:
                computed = [table.file], facts
                job.cached(f"{title}: features under {table.view}", table.manifest, table.depends, lambda: computed)  # noqa: B023


def open_trial_runner(job: Job, name: str) -> "TrialRunner":
    """Runner of the trials of a member. The device is opened with the first trial."""
    from competition.tuning.settings import folds_used_in_tuning
    from competition.tuning.trials import TrialRunner

    device = functools.cache(partial(start_device, job))
    folds = [-1, *folds_used_in_tuning(job.params)]  # -1: in no fold

    def select(images: "Images") -> "Images":  # no trial sees a row of another fold
        return replace(images, readable=images.readable & np.isin(images.folds, folds))

    def open_with(member: Member, images: "Images | None") -> "FoldScorer":
        return open_scorer(job, member, f"tune {name}", device(), TrainerInputs(images=images, select=select))

    return TrialRunner(job.params.members[name], job.params, open_with)


def measure_speed(member: Member, sizes: Sizes, device: "Device", predict_batch: int, views: tuple[str, ...]) -> Speed:
    """Measure training and prediction with the real trainer on random images.

    The first epoch compiles; later ones are timed. Two folds: half of the images is trained on, half is scored.
    """
    from competition.images.batches import steps_per_epoch
    from competition.images.labelled_images import Images
    from competition.training.fold_rows import FoldRows
    from competition.training.trainer import Trainer

    started = time.monotonic()
    batch, size = member.train.batch, member.image_size
    rows = 2 * min(STEPS_MEASURED * batch, max(sizes.train // 2, batch))
    numbers = np.arange(rows)
    pixels = np.random.default_rng(0).integers(0, 256, (rows, size, size, 3), np.uint8)
    labels, folds = numbers % sizes.classes, numbers // sizes.classes % 2
    images = Images(numbers.astype(str), pixels, labels, folds, np.ones(rows, bool))
    plain_member = replace(member.without_pretrained_weights, teacher=(), external=())
    trainer = Trainer(FoldRows(plain_member, images, sizes.classes), "accuracy", device, predict_batch)

    def train(epochs: int) -> float:
        schedule = replace(member.train, epochs=epochs, patience=0, low_resolution_epochs=0.0, freeze_epochs=0)
        return timed(lambda: trainer.train_to_end(0, schedule, score_epochs=False))

    def predict(names: tuple[str, ...], selected_rows: np.ndarray) -> float:
        return timed(lambda: trainer.predict(trainer.engine.weights(), images, selected_rows, names))

    train(1)
    startup = time.monotonic() - started
    train_rows, held_out_rows = np.flatnonzero(images.folds == 1), np.flatnonzero(images.folds == 0)
    held_out_seconds = predict(("identity",), held_out_rows)
    steps = steps_per_epoch(len(train_rows), trainer.engine.batch)
    step_seconds = max(min((train(3) - held_out_seconds) / (3 * steps) for _ in range(2)), 1e-9)
    first, cached, count = predict(views, held_out_rows), predict(views, held_out_rows), len(held_out_rows)
    ready = startup - steps * step_seconds - held_out_seconds
    return Speed(ready, step_seconds, held_out_seconds / count, cached / count / len(views), max(first - cached, 0.0))


def compiled_features(member: Member, device: "Device", predict_batch: int) -> tuple["FeatureEngine", float]:
    """(frozen network of a member, compiled by one batch of noise; seconds that it took)"""
    from competition.training.features import feature_engine

    started = time.monotonic()
    engine = feature_engine(member, device, predict_batch)
    pass_seconds(engine, member, batches=1)
    return engine, time.monotonic() - started


def pass_seconds(engine: "FeatureEngine", member: Member, batches: int = 3) -> float:
    """Seconds of one image under one view, of random images."""
    from competition.images.labelled_images import Images
    from competition.training.features import compute_features

    count = batches * engine.predict_batch
    pixels = np.random.default_rng(0).integers(0, 256, (count, member.image_size, member.image_size, 3), np.uint8)
    unknown = np.full(count, -1)
    images = Images(np.arange(count).astype(str), pixels, unknown, unknown, np.ones(count, bool))
    return timed(lambda: compute_features(engine, images, np.arange(count), ["identity"])) / count


def timed(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def target_caption(row: np.ndarray, classes: Sequence[str]) -> str:
    """The largest of (C,) targets or probabilities with its class; the value of a regression."""
    return f"{row[0]:.4g}" if len(row) == 1 else f"{classes[int(row.argmax())]} {row.max():.2f}"


@contextmanager
def errors_named(job: Job, network: Member, title: str) -> Iterator[None]:
    """Errors about architecture or weights in this block name the member; those of missing ImageNet weights, the SET that states files."""
    try:
        yield
    except MissingWeights as error:
        wanted = (network.architecture, network.alpha, "imagenet")
        names = [name for name, one in job.params.members.items() if (one.architecture, one.alpha, one.weights) == wanted]
        values = " ".join(f"members.{name}.weights=FILE" for name in names)
        ready = f', or state its path: SET="{values}"' if names else ""
        raise UserError(f"{display_path(job.options.params)}: {error}{ready}") from error
    except UserError as error:
        raise UserError(f"{title}: {error}") from error
