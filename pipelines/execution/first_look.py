"""A first honest score of a large set: heads on the features of a sample of its rows, before those of all images are computed."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from competition.budget.portfolio import Network
from competition.config.params import Head
from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.images.decoded_cache import CacheBudget
from competition.preflight.planning import duration
from competition.report.terminal import with_error
from competition.workspace.scores import trivial_text
from pipelines.execution.budget_search import Search, Trial
from pipelines.execution.trainer import read_images

if TYPE_CHECKING:
    from competition.training.features import FeatureEngine

MANY_ROWS = 4_000  # training rows; with fewer, the first member takes less than a minute on two cores
SAMPLE = 2_000  # rows
STRENGTH = (0.3,)  # the middle one of those that a member tries: choosing it would take as long as the rest of the look
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
    images = sample_rows(
        read_images(job, network.member, ["train"], network.name, streamed), SAMPLE, job.params.honest.seed
    )
    features = compute_features(engine, images, np.arange(len(images.ids)), ["identity"])[:, 0]
    member = replace(network.member, head=Head("linear", strengths=STRENGTH))
    classes = len(prepared.competition.classes)
    rows = FoldRows(member, images, classes, prepared.competition.targets)
    trainer = HeadTrainer(rows, prepared.competition.metric, stored_features(images.ids, {"identity": features}))
    predicted, probs, began = [], [], time.monotonic()
    folds = [int(fold) for fold in np.unique(images.folds)]
    with trainer.fitting_ahead(folds, member.train):
        for fold in folds:
            trainer.train_to_end(fold, member.train)
            predicted.append(rows.held_out(fold))
            probs.append(trainer.held_out(fold).view("identity"))
    head_seconds = CHOICE * (time.monotonic() - began) * count / len(images.ids)
    metric, honest = trainer.metric, job.params.honest
    evaluation = Evaluation(metric, classes, honest.resamples, honest.seed)
    score = score_with_error(
        rows.targets_of(np.concatenate(predicted)), metric.output_of(np.concatenate(probs)), evaluation
    )
    text = with_error(metric.display(score.value), score.error, metric.name)
    name = f"{network.name}-linear on {len(images.ids):,} rows"
    search.trials.append(Trial(name, time.monotonic() - started, verdict=f"a first look: {text}"))
    job.echo(
        f"budget: first honest {metric.name} after {duration(search.clock.spent)}: {text} by {name} of {count:,}, "
        f"drawn at random (more rows usually score higher); {trivial_text(prepared)}"
    )
    return head_seconds
