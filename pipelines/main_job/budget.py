"""Train within a stated time the members that promise most, and write them to an ordinary parameter file.

The features of networks are computed once each, the cheapest network first, then the best expected; heads are fitted to them;
networks are fine-tuned with what is left. Only costs and the order of the portfolio decide what is made, never a score: every member
enters the blend, whose weights are fitted and scored as always, so the honest score rests on all rows. A member is trained and
predicted completely before the file names it, so that `make predict HOURS=...` writes a submission at any moment.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from competition.budget.clock import Clock, start_clock
from competition.budget.parameters import MOST_VIEWS, file_text, path_from, with_members
from competition.budget.portfolio import (
    EPOCHS,
    FEW_ROWS,
    Network,
    fine_tuned,
    frozen,
    missing_weights,
    networks_of,
    read_portfolio,
    stated_members,
)
from competition.config.errors import UserError
from competition.config.params import TIMM, Member, Params
from competition.ensemble.honest import fit_and_score_chain
from competition.ensemble.metrics import metric_named
from competition.ensemble.nested import OofRows
from competition.ensemble.settings import chain_settings
from competition.files.manifest import atomic_write
from competition.images.cache import CacheBudget
from competition.preflight.planning import Sizes, cost_of, duration, load_of
from competition.prepare.competition import needs_a_label
from competition.prepare.targets import check_training
from competition.report.terminal import with_error
from competition.workspace.dependencies import training_parts
from competition.workspace.ensemble_inputs import load_predictions, prediction_sources
from competition.workspace.features import missing_tables
from competition.workspace.runs import runs_of
from competition.workspace.scores import held_out_score, trivial_text
from pipelines.terminal import hosts
from pipelines.terminal.options import PORTFOLIO, ROOT
from pipelines.terminal.output import display_path, table_lines
from pipelines.terminal.predicting import predict_folds, stale_folds
from pipelines.terminal.runner import Job
from pipelines.terminal.trainer import measure_speed, read_images, start_device, store_missing
from pipelines.terminal.training import train_run

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.features import FeatureEngine

FILE = ("budget", "params.yaml")  # below work/<competition>
START_SECONDS = 3.0  # of predict and blend beside fitting the blend
# A fold model of a head takes about so many times as long as one of the first linear head (200 and 6,000 photos).
HEAD_FACTORS = {"linear": 1.0, "rbf": 2.0, "mlp": 8.0}
HEAD_SHARE = 0.1  # of the time that is left: a head that takes more waits until networks were fine-tuned
GRADIENT_FACTOR = 2.0  # training costs at least so many times as much as a pass under one view
SURPRISE = 2.0  # a network is at most so many times as fast as its relative cost says
RESERVE = 1.15  # times the measured cost of fine-tuning
STEPS = 3  # training steps per epoch of the measurement


class TimeIsUp(Exception):
    """The budget has no time left for what is being computed."""


@dataclass
class Trial:
    """One candidate: what it cost and why it is kept or not."""

    name: str
    seconds: float
    score: float | None = None  # mean over the folds, as the metric is shown
    verdict: str = ""
    needs: float = 0.0  # seconds that it would take; 0 = it was tried


@dataclass
class Search:
    """What is known so far."""

    job: Job
    clock: Clock
    device: "Device"
    views: tuple[str, ...]  # of features and predictions
    members: dict[str, Member] = field(default_factory=dict)  # the complete ones, and the one that is being made
    complete: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    each: dict[str, float] = field(default_factory=dict)  # network -> seconds of one image under one view
    head_seconds: float = 0.0  # one fold model of the first member
    blend_seconds: float = 0.0  # of a blend of one member

    @property
    def left(self) -> float:
        """Seconds for more members. Prediction and blend, whose time grows with the members, are reserved."""
        return self.clock.left - START_SECONDS - self.blend_seconds * (len(self.complete) + 2)

    def stop_in_time(self) -> None:
        if self.left < 0:
            raise TimeIsUp


def run(job: Job) -> None:
    """data/, features/ -> members/..., budget/params.yaml: an ordinary parameter file of the members that were made"""
    clock = start_clock(job.options.hours, job.options.budget)
    if hosts.are_expected():
        raise UserError("HOURS=: a budget needs one host, and several are expected; train without HOURS")
    params, path = job.params, job.params.budget.portfolio
    portfolio = read_portfolio(PORTFOLIO, params) if not path and PORTFOLIO.is_file() else []
    portfolio = read_portfolio(ROOT / path, params) if path else portfolio
    search = Search(job, clock, start_device(job), params.predict.views[:MOST_VIEWS])
    job.echo(f"budget: {duration(clock.seconds)}, prediction and blend included")
    networks = [network for network in networks_of(params, portfolio) if is_available(search, network)]
    cheapest = min(networks, key=lambda one: (one.cost is None, one.cost or 0.0), default=None)
    if cheapest is None:
        train_first(search)
    else:
        make_first(search, cheapest)
        make_features(search, cheapest, [one for one in networks if one is not cheapest])
    usable = [one for one in networks if f"{one.name}-linear" in search.complete]
    late_heads = make_heads(search, usable)
    fine_tune(search, networks)
    for name, member in late_heads:
        make_member(search, name, member)
    job.echo(*summary(search))


def is_available(search: Search, network: Network) -> bool:
    """Whether the weights of a network can be had; a line tells if not."""
    if reason := missing_weights(network.member):
        search.job.echo(f"budget: without {network.name}, because {reason}")
    return not reason


def make_first(search: Search, network: Network) -> None:
    """Make the cheapest member in any case, and print the first honest score."""
    from competition.training.features import feature_engine

    job, name, started = search.job, f"{network.name}-linear", time.monotonic()
    parts = (*training_parts(network.member), "test")
    if missing_tables(job.workspace, network.member, parts, search.views):
        engine = feature_engine(network.member, search.device, job.params.predict.batch)
        search.each[network.name] = image_seconds(search, network, engine)
        needs = search.each[network.name] * len(search.views) * sum(len(job.prepared.part(part)) for part in parts)
        if needs > search.left:
            job.echo(
                f"budget: {duration(search.clock.seconds)} do not pay for the smallest member, {name}, which takes about "
                f"{duration(needs)}; it is made nevertheless"
            )
        store_missing(job, network.member, network.name, lambda: engine, (parts, search.views), lambda: None)
    keep_first(search, name, frozen(network, "linear", search.views), started)


def make_features(search: Search, first: Network, networks: Sequence[Network]) -> None:
    """A linear head on each network whose features fit into the time, the best expected first.

    Where the best network fits only under one view, the views but the first are given up, also those of the first member.
    """
    images = len(search.job.prepared.index)
    for network in networks:
        name, started = f"{network.name}-linear", time.monotonic()
        unit = images * search.each.get(first.name, 0.0) / (first.cost or 1.0)
        if (expected := unit * (network.cost or 0.0)) / SURPRISE > search.left:  # not even worth measuring it
            skip(search, name, expected * len(search.views))
            continue
        try:
            needs = compute_if_it_fits(search, network, first)
        except TimeIsUp:
            search.trials.append(Trial(name, time.monotonic() - started, verdict="stopped: the time was up"))
        except UserError as error:  # about its weights
            search.trials.append(Trial(name, time.monotonic() - started, verdict=f"left out: {error}"))
        else:
            if needs:
                skip(search, name, needs, time.monotonic() - started)
            else:
                make_member(search, name, frozen(network, "linear", search.views), started)


def compute_if_it_fits(search: Search, network: Network, first: Network) -> float:
    """Compute the features of a network and return 0, or return the seconds that they would take."""
    from competition.training.features import feature_engine

    job, parts = search.job, (*training_parts(network.member), "test")
    if not missing_tables(job.workspace, network.member, parts, search.views):
        return 0.0
    engine = feature_engine(network.member, search.device, job.params.predict.batch)
    search.each[network.name] = each = image_seconds(search, network, engine)
    one_view = each * sum(len(job.prepared.part(part)) for part in parts)
    heads = head_needs(search, frozen(network, "linear", search.views))
    is_only_the_first = search.complete == [f"{first.name}-linear"]
    if one_view * len(search.views) + heads > search.left:
        if not is_only_the_first or one_view + 2 * heads > search.left:
            return one_view * len(search.views)
        search.views = search.views[:1]
        job.echo(f"budget: {network.name} fits under one view only, so {search.views[0]} is the only one")
        name = search.complete.pop()
        make_member(search, name, frozen(first, "linear", search.views))
    wanted = (parts, search.views)
    store_missing(job, network.member, network.name, lambda: engine, wanted, search.stop_in_time)
    return 0.0


def image_seconds(search: Search, network: Network, engine: "FeatureEngine") -> float:
    """Seconds of one image under one view, decoding included, measured on one batch after the network is compiled."""
    from competition.training.features import compute_features

    job = search.job
    images = read_images(job, network.member, ("train",), network.name, CacheBudget(job.path("features"), 0, 0))
    rows = np.arange(min(len(images.ids), engine.predict_batch))
    compute_features(engine, images, rows[:1], search.views)
    started = time.monotonic()
    compute_features(engine, images, rows, search.views)
    return (time.monotonic() - started) / len(rows) / len(search.views)


def keep_first(search: Search, name: str, member: Member, started: float) -> None:
    """Make the first member, and print its honest score."""
    job = search.job
    search.members[name] = member
    began = time.monotonic()
    score = complete(search, name)
    search.head_seconds = (time.monotonic() - began) / job.params.prepare.folds
    search.trials.append(Trial(name, time.monotonic() - started, score, "kept"))
    search.complete.append(name)
    write_file(search)
    began, only = time.monotonic(), job_of(search, [name])
    inputs = load_predictions(only.workspace, prediction_sources(only.workspace, False))
    competition = job.prepared.competition
    metric, settings = metric_named(competition.metric), needs_a_label(competition)
    rows = OofRows(inputs.oof, inputs.labels, inputs.folds, inputs.tuned_folds)
    honest = fit_and_score_chain(rows, chain_settings(only.params, metric.name, settings), job.params.honest)
    search.blend_seconds = time.monotonic() - began
    job.echo(
        f"budget: first honest {metric.name} after {duration(search.clock.spent)}: "
        f"{with_error(metric.display(honest.honest.value), honest.honest.error)} by {name}; {trivial_text(job.prepared)}"
    )


def train_first(search: Search) -> None:
    """Without any pretrained network: train the first member of the parameter file as it is stated."""
    stated = {name: one for name, one in stated_members(search.job.params).items() if one.weights == "none"}
    if not stated:
        raise UserError(
            "HOURS=: no candidate has weights on this machine; state a weights file (`weights: path/to/file.weights.h5`) of a "
            "member, or connect the network"
        )
    name = next(iter(stated))
    search.job.echo(f"budget: without pretrained weights; {name} is trained as it is stated")
    keep_first(search, name, stated[name], time.monotonic())


def make_heads(search: Search, networks: Sequence[Network]) -> list[tuple[str, Member]]:
    """Other heads on the stored features, and return those that take too much of the time that is left."""
    late = []
    for kind in ("rbf", "mlp"):
        for network in networks:
            name, member = f"{network.name}-{kind}", frozen(network, kind, search.views)
            if head_needs(search, member) < HEAD_SHARE * search.left:
                make_member(search, name, member)
            else:
                late.append((name, member))
    return late


def head_needs(search: Search, member: Member) -> float:
    """Seconds of all fold models of a head, about."""
    assert member.head is not None
    return HEAD_FACTORS[member.head.kind] * search.head_seconds * search.job.params.prepare.folds


def fine_tune(search: Search, networks: Sequence[Network]) -> None:
    """Fine-tune the best expected network, train the members of the file as they are stated, then fine-tune other networks."""
    job, folds = search.job, search.job.params.prepare.folds
    count = len(job.prepared.part("train"))
    rows = count - count // folds
    stated = {name: one for name, one in stated_members(job.params).items() if name not in search.complete}
    keras = [one for one in networks if not one.member.architecture.startswith(TIMM)]
    tuned = {f"{one.name}-tuned": fine_tuned(one, rows) for one in keras}
    candidates = [*list(tuned.items())[:1], *stated.items(), *list(tuned.items())[1:]]
    sizes = Sizes(len(job.prepared.competition.classes), count, len(job.prepared.part("test")))
    for name, member in candidates:
        started, each = time.monotonic(), search.each.get(name.removesuffix("-tuned"), 0.0)
        if member.weights != "none" and rows < FEW_ROWS:
            search.trials.append(Trial(name, 0.0, verdict=f"left out: {rows} rows are too few for fine-tuning"))
            continue
        fewest = member.train.epochs if name in stated else EPOCHS[0]
        if (least := GRADIENT_FACTOR * each * rows * folds * fewest) > search.left:  # not even worth measuring it
            skip(search, name, least)
            continue
        try:
            check_training(job.prepared.competition.targets.kind, name, member.train)
            measured = replace(sizes, train=2 * STEPS * member.train.batch)
            speed = measure_speed(member, measured, search.device, job.params.predict.batch, search.views)
            settings = with_members(job.params, {name: member}, (), search.views)
            for epochs in range(member.train.epochs, fewest - 1, -1):  # as many as fit
                member = replace(member, train=replace(member.train, epochs=epochs))
                load = load_of(member, settings, name, sizes, search.device.replicas)
                if (needs := RESERVE * cost_of(load, speed).seconds) <= search.left:
                    make_member(search, name, member, started)
                    break
            else:
                skip(search, name, needs, time.monotonic() - started)
        except UserError as error:
            search.trials.append(Trial(name, time.monotonic() - started, verdict=f"left out: {error}"))


def make_member(search: Search, name: str, member: Member, started: float | None = None) -> None:
    """Train and predict a member if the time suffices, and write the parameter file with it.

    started: when its work began, for the table; None = now.
    """
    started = time.monotonic() if started is None else started
    trial = Trial(name, 0.0)
    if member.head is not None and (needs := head_needs(search, member)) > search.left:
        return skip(search, name, needs)
    search.trials.append(trial)
    search.members[name] = member
    try:
        trial.score = complete(search, name, search.stop_in_time)
    except TimeIsUp:
        trial.verdict = "stopped: the time was up"
        del search.members[name]
    else:
        trial.verdict = "kept"
        search.complete.append(name)
        write_file(search)
    trial.seconds = time.monotonic() - started
    return None


def complete(search: Search, name: str, at_step: Callable[[], None] = lambda: None) -> float:
    """Train and predict the fold models of this member that are not current, and return the mean of their scores."""
    only = job_of(search, [name])
    runs = runs_of(only.workspace, name)
    for one in runs:
        train_run(only, one, at_step)
        if stale := stale_folds(only, one, False):
            predict_folds(only, one, stale)
    folds = range(search.job.params.prepare.folds)
    return float(np.mean([held_out_score(search.job.prepared, runs[0], fold) for fold in folds]))


def skip(search: Search, name: str, needs: float, spent: float = 0.0) -> None:
    """Note a candidate that does not fit."""
    search.trials.append(Trial(name, spent, None, f"does not fit: about {duration(needs)}", needs))


def job_of(search: Search, names: Sequence[str]) -> Job:
    """The job with these members."""
    job, params = search.job, parameters_of(search, names)
    return replace(job, workspace=job.workspace.with_params(params), options=replace(job.options, fold=""))


def parameters_of(search: Search, names: Sequence[str]) -> Params:
    members = {name: search.members[name] for name in names}
    return with_members(search.job.params, members, names, search.views)


def write_file(search: Search) -> None:
    """Write the parameter file of the complete members."""
    job, metric = search.job, search.job.prepared.competition.metric
    comments = {
        one.name: f"{metric} {one.score:.4f}, {duration(one.seconds)}" for one in search.trials if one.score is not None
    }
    path, base = job.path(*FILE), job.options.params
    head = [f"Made within {duration(search.clock.seconds)}. `make train predict` with this file repeats the result."]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = file_text(
        parameters_of(search, search.complete), path_from(path.parent, base), job.overrides, comments, head
    )
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def summary(search: Search) -> list[str]:
    """The table of what was tried, and what twice the time would pay for."""
    rows = [
        (one.name, duration(one.seconds), "" if one.score is None else f"{one.score:.4f}", one.verdict)
        for one in search.trials
    ]
    columns = ("candidate", "cost", search.job.prepared.competition.metric, "")
    more = max(search.left, 0.0) + search.clock.seconds
    next_ones = [one for one in search.trials if 0 < one.needs <= more]
    twice = "; ".join(f"{one.name} (about {duration(one.needs)})" for one in next_ones)
    return [
        *table_lines(columns, rows),
        f"budget: on the same rows {trivial_text(search.job.prepared)}",
        f"budget: {duration(search.clock.spent)} of {duration(search.clock.seconds)} are spent before the blend; "
        + (f"twice the time would also pay for {twice}" if twice else "twice the time would pay for nothing more"),
        f"budget: {display_path(search.job.path(*FILE))}",
    ]
