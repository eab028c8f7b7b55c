"""What a budget settles before the features of all images are computed: a first honest score of a large set, and the views."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from competition.budget.portfolio import Network
from competition.config.errors import UserError
from competition.config.params import Head
from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.images.decoded_cache import CacheBudget
from competition.preflight.planning import duration
from competition.report.terminal import with_error
from competition.workspace.dependencies import training_parts
from competition.workspace.features_and_soft_labels import missing_tables
from competition.workspace.scores import trivial_text
from pipelines.execution.budget_search import Search, Trial
from pipelines.execution.trainer import compiled_features, pass_seconds, read_images

if TYPE_CHECKING:
    from competition.training.features import FeatureEngine

MANY_ROWS = 4_000  # training rows; with fewer, the first member takes less than a minute on two cores
SAMPLE = 2_000  # rows
STRENGTH = (0.3,)  # the middle one of those that a member tries: choosing it would take as long as the rest of the look
SURPRISE = 2.0  # a network is at most so many times as fast as its relative cost says
FIRST_SHARE = 0.1  # of the time that is left: if the first member takes less, its views leave time for others
CHOICE = 2.5  # a head that chooses among its strengths takes so many times as long


def look_at_sample(search: Search, network: Network, engine: "FeatureEngine") -> float:
    """Print the honest score of a linear head on a random sample of the rows of a large set, and note it among the trials.

    Each fold of the sample is predicted by a head that was fitted to the sample's other folds. Nothing is chosen by the score.
    Returns the seconds that the heads of the first member will take, about; 0 of a small set.
    """
    from competition.images.labelled_images import sample_rows
    from competition.training.features import compute_features, stored_features
    from competition.training.fold_rows import FoldRows
    from competition.training.head_trainer import HeadTrainer

    job, prepared, started = search.job, search.job.prepared, time.monotonic()
    if (count := len(prepared.part("train"))) < MANY_ROWS:
        return 0.0
    streamed = CacheBudget(job.path("features"), 0, 0)  # only the images of the sample are decoded
    images = read_images(job, network.member, ["train"], network.name, streamed)
    images = sample_rows(images, SAMPLE, job.params.honest.seed)
    features = compute_features(engine, images, np.arange(len(images.ids)), ["identity"])[:, 0]
    member = replace(network.member, head=Head("linear", strengths=STRENGTH))
    classes = len(prepared.competition.classes)
    rows = FoldRows(member, images, classes, prepared.competition.targets)
    trainer = HeadTrainer(rows, prepared.competition.metric, stored_features(images.ids, {"identity": features}))
    targets, probs, began = [], [], time.monotonic()
    folds = [int(fold) for fold in np.unique(images.folds)]
    with trainer.fitting_ahead(folds, member.train):
        for fold in folds:
            trained = trainer.train_to_end(fold, member.train)
            targets.append(rows.targets_of(rows.held_out(fold)))
            probs.append(trainer.out_of_fold(fold, trained).view("identity"))
    head_seconds = CHOICE * (time.monotonic() - began) * count / len(images.ids)
    metric, honest = trainer.metric, job.params.honest
    evaluation = Evaluation(metric, classes, honest.resamples, honest.seed)
    score = score_with_error(np.concatenate(targets), metric.output_of(np.concatenate(probs)), evaluation)
    text = with_error(metric.display(score.value), score.error, metric.name)
    name = f"{network.name}-linear on {len(images.ids):,} rows"
    search.trials.append(Trial(name, time.monotonic() - started, verdict=f"a first look: {text}"))
    job.echo(
        f"budget: first honest {metric.name} after {duration(search.clock.spent)}: {text} by {name} of {count:,}, "
        f"drawn at random (more rows usually score higher); {trivial_text(prepared)}"
    )
    return head_seconds


def has_missing_features(search: Search, network: Network) -> bool:
    """Whether features of a network are to be computed, under any view of the search."""
    parts = (*training_parts(network.member), "test")
    return bool(missing_tables(search.job.workspace, network.member, parts, search.views))


def engine_for(search: Search, network: Network) -> "FeatureEngine":
    """The compiled network, which is kept until its features are computed."""
    from competition.training.features import feature_width

    if network.name not in search.engines:
        batch = search.job.params.predict.batch
        engine, search.compile_seconds[network.name] = compiled_features(network.member, search.device, batch)
        search.engines[network.name], search.widths[network.name] = engine, feature_width(engine)
    return search.engines[network.name]


def seconds_if_too_slow(search: Search, first: Network, network: Network) -> float:
    """Seconds of all images by the relative cost of a network, if even a surprise would not make them fit; else 0."""
    expected = search.each.get(first.name, 0.0) * (network.cost or 0.0) / (first.cost or 1.0)
    seconds = len(search.job.prepared.index) * expected
    return seconds if seconds / SURPRISE > search.left else 0.0


def settle_views(search: Search, first: Network, others: Sequence[Network], heads: float) -> None:
    """Use the first view only if the next network then fits beside the first one, and does not under all views.

    Two networks under one view score more than the cheapest one under all of them.  heads: seconds of a member's heads.
    """
    images, views = len(search.job.prepared.index), len(search.views)
    search.each[first.name] = pass_seconds(engine_for(search, first), first.member)
    if views == 1 or images * views * search.each[first.name] + heads < FIRST_SHARE * search.left:
        return
    second = next((one for one in others if not seconds_if_too_slow(search, first, one)), None)
    if second is None or not has_missing_features(search, second):
        return
    try:
        search.each[second.name] = pass_seconds(engine_for(search, second), second.member)
    except UserError:  # about its weights, which is said when its turn comes
        return
    each_view = images * (search.each[first.name] + search.each[second.name])
    if each_view + 2 * heads <= search.left < views * each_view + 2 * heads:
        search.views = search.views[:1]
        search.job.echo(f"budget: {second.name} fits under one view only, so {search.views[0]} is the only one")
