"""What a budget settles before the features of all images are computed: a first honest score of a large set, and the views."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from competition.budget.portfolio import Network
from competition.config.errors import UserError
from competition.config.params import Head
from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.ensemble.view_transforms import VIEWS
from competition.input_pipeline.decoded_cache import CacheBudget
from competition.preflight.planning import duration
from competition.report.terminal import with_error
from competition.workspace.dependencies import training_parts
from competition.workspace.features_and_soft_labels import missing_tables
from competition.workspace.scores import trivial_text
from pipelines.execution.budget_search import Search, Trial
from pipelines.execution.open_trainer import read_images
from pipelines.execution.speed import compiled_features, pass_seconds

if TYPE_CHECKING:
    from competition.training.features import FeatureEngine

MANY_ROWS = 4_000  # training rows; with fewer, the first member takes less than a minute on two cores
SAMPLE = 2_000  # rows
STRENGTH = (0.3,)  # the middle one of those that a member tries: choosing it would take as long as the rest of the look
COMPARED_ROWS = 300  # to compare the features of two networks
CLEARLY_LESS = 0.9  # of the loss of the first network
SURPRISE = 2.0  # a network is at most so many times as fast as its relative cost says
FIRST_SHARE = 0.1  # of the time that is left: if the first member takes less, its views leave time for others
CHOICE = 2.5  # a head that chooses among its strengths takes so many times as long


@dataclass(frozen=True)
class SampleHeads:
    """Linear heads on the features of a random sample of the training rows, each fitted without one fold."""

    rows: int
    targets: np.ndarray  # of the rows that the heads held out
    probs: np.ndarray  # of the same rows
    losses: list[float]  # one per head, of rows that it was fitted to or chose its strength on
    seconds: float  # for the heads


def sample_heads(search: Search, network: Network, most: int, head: Head) -> SampleHeads:
    """Fit heads of all folds to a sample of at most so many rows, whose images are decoded alone."""
    from competition.input_pipeline.labelled_images import sample_rows
    from competition.training.features import compute_features, stored_features
    from competition.training.fold_rows import FoldRows
    from competition.training.head_trainer import HeadTrainer

    job, competition = search.job, search.job.prepared.competition
    streamed = CacheBudget(job.path("features"), 0, 0)
    images = read_images(job, network.member, ["train"], network.name, streamed)
    images = sample_rows(images, most, job.params.honest.seed)
    engine = engine_for(search, network)
    features = compute_features(engine, images, np.arange(len(images.ids)), [VIEWS["identity"]])[:, 0]
    member = replace(network.member, head=head)
    rows = FoldRows(member, images, len(competition.classes), competition.targets)
    trainer = HeadTrainer(rows, job.prepared.metric, stored_features(images.ids, {"identity": features}))
    targets, probs, losses, began = [], [], [], time.monotonic()
    folds = [int(fold) for fold in np.unique(images.folds)]
    with trainer.fitting_ahead(folds, member.train):
        for fold in folds:
            trained = trainer.train_to_end(fold, member.train)
            losses.append(trained.history[-1].loss)
            targets.append(rows.targets_of(rows.held_out(fold)))
            probs.append(trainer.out_of_fold(fold, trained).view("identity"))
    seconds = time.monotonic() - began
    return SampleHeads(len(images.ids), np.concatenate(targets), np.concatenate(probs), losses, seconds)


def look_at_sample(search: Search, network: Network) -> float:
    """Print the honest score of a linear head on a random sample of the rows of a large set, and note it among the trials.

    Each fold of the sample is predicted by a head that was fitted to the sample's other folds. Nothing is chosen by the score.
    Returns the seconds that the heads of the first member will take, about; 0 of a small set.
    """
    job, prepared, started = search.job, search.job.prepared, time.monotonic()
    if (count := len(prepared.part("train"))) < MANY_ROWS:
        return 0.0
    sample = sample_heads(search, network, SAMPLE, Head("linear", strengths=STRENGTH))
    metric, honest = prepared.metric, job.params.honest
    evaluation = Evaluation(metric, len(prepared.competition.classes), honest.resamples, honest.seed)
    score = score_with_error(sample.targets, metric.output_of(sample.probs), evaluation)
    text = with_error(metric.display(score.value), score.error, metric.name)
    name = f"{network.name}-linear on {sample.rows:,} rows"
    search.trials.append(Trial(name, time.monotonic() - started, verdict=f"a first look: {text}"))
    job.echo(
        f"budget: first honest {metric.name} after {duration(search.clock.spent)}: {text} by {name} of {count:,}, "
        f"drawn at random (more rows usually score higher); {trivial_text(prepared)}"
    )
    return CHOICE * sample.seconds * count / sample.rows


def others_say_more(search: Search, first: Network, others: Sequence[Network]) -> bool:
    """Return True if linear heads on another network's features have clearly less loss on a small sample, in every fold.

    Looked at is the best expected network of other weights whose features can be paid for.
    """
    for other in others:
        backbones = {(one.member.architecture, one.member.alpha, one.member.weights) for one in (first, other)}
        if len(backbones) == 1 or seconds_if_too_slow(search, first, other):
            continue
        started = time.monotonic()
        try:
            heads = [sample_heads(search, one, COMPARED_ROWS, Head("linear")) for one in (first, other)]
        except UserError:  # about its weights, which is said when its turn comes
            continue
        search.engines.pop(first.name)  # its features are complete
        says_more = all(b < CLEARLY_LESS * a for a, b in zip(heads[0].losses, heads[1].losses, strict=True))
        verdict = f"a look: its features say {'' if says_more else 'no '}more than those of {first.name}"
        name = f"{other.name}-linear on {min(COMPARED_ROWS, len(search.job.prepared.part('train'))):,} rows"
        search.trials.append(Trial(name, time.monotonic() - started, verdict=verdict))
        return says_more
    return False


def has_missing_features(search: Search, network: Network) -> bool:
    """Whether features of a network are to be computed, under any view of the search."""
    parts = (*training_parts(network.member), "test")
    return bool(missing_tables(search.job.workspace, network.member, parts, search.views))


def engine_for(search: Search, network: Network) -> "FeatureEngine":
    """The compiled network, which is kept until its features are computed."""
    from competition.training.features import feature_width

    if network.name not in search.engines:
        params = search.job.params
        engine, search.compile_seconds[network.name] = compiled_features(network.member, search.device, params)
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
