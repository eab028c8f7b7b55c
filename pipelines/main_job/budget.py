"""Find within a stated time the members with the best scores, and write them to an ordinary parameter file.

The features of networks are computed once each, the cheapest network first; heads are fitted to them; the best network is
fine-tuned if the time is left. Scores of fold 0 choose, by fold models that learned from all other folds: the chosen members
state every fold (tuned_folds), and scores of a blend with them are labelled optimistic. A member is trained and predicted
completely before the file names it, so that
`make predict HOURS=...` writes a submission at any moment.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from competition.budget.clock import Clock, start_clock
from competition.budget.parameters import file_text, path_from, with_members
from competition.budget.portfolio import (
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
from competition.config.params import Member, Params
from competition.ensemble.honest import fit_and_score_chain
from competition.ensemble.metrics import metric_named
from competition.ensemble.nested import OofRows
from competition.ensemble.settings import chain_settings
from competition.ensemble.trivial import trivial_output
from competition.files.manifest import atomic_write
from competition.images.cache import CacheBudget
from competition.preflight.planning import Sizes, cost_of, duration, load_of
from competition.prepare.competition import needs_a_label
from competition.prepare.targets import check_training
from competition.report.tables import table_lines
from competition.report.terminal import with_error
from competition.workspace.dependencies import training_parts
from competition.workspace.ensemble_inputs import load_predictions, prediction_sources
from competition.workspace.features import missing_tables
from competition.workspace.runs import runs_of
from competition.workspace.scores import held_out_score
from pipelines.terminal import hosts
from pipelines.terminal.options import PORTFOLIO, ROOT
from pipelines.terminal.output import display_path
from pipelines.terminal.predicting import predict_folds, stale_folds
from pipelines.terminal.runner import Job
from pipelines.terminal.trainer import measure_speed, read_images, start_device, store_missing
from pipelines.terminal.training import train_run

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.engine import Engine

FOLD = 0  # whose held-out rows choose
FILE = ("budget", "params.yaml")  # below work/<competition>
START_SECONDS = 3.0  # of predict and blend beside fitting the blend
# A fold model of a head takes at most so many times as long as one of the first linear head (200 and 6,000 photos).
HEAD_FACTORS = {"linear": 3.0, "rbf": 4.0, "mlp": 30.0}
GRADIENT_FACTOR = 2.0  # training costs at least so many times as much as a pass under one view
SURPRISE = 2.0  # a network is at most so many times as fast as its relative cost says
STEPS = 3  # training steps per epoch of the measurement


class TimeIsUp(Exception):
    """The budget has no time left for what is being computed."""


@dataclass
class Trial:
    """One candidate: what it cost and why it is kept or not."""

    name: str
    seconds: float
    score: float | None = None  # on fold 0, as the metric is shown
    verdict: str = ""
    needs: float = 0.0  # seconds that it would take; 0 = it was tried


@dataclass
class Search:
    """What is known so far."""

    job: Job
    clock: Clock
    device: "Device"
    members: dict[str, Member] = field(default_factory=dict)  # all that were tried
    kept: list[str] = field(
        default_factory=list
    )  # complete ones that the file names; the first was not chosen by a score
    trials: list[Trial] = field(default_factory=list)
    linear: dict[str, float] = field(default_factory=dict)  # network -> score of its linear head, greater is better
    each: dict[str, float] = field(default_factory=dict)  # network -> seconds of one image under all views
    head_seconds: float = 0.0  # one fold model of the first member
    blend_seconds: float = 0.0  # of a blend of one member

    @property
    def views(self) -> tuple[str, ...]:
        return with_members(self.job.params, {}, ()).predict.views

    @property
    def sign(self) -> int:
        return metric_named(self.job.prepared.competition.metric).sign

    @property
    def left(self) -> float:
        """Seconds for more members. Prediction and blend, whose time grows with the members, are reserved."""
        return self.clock.left - START_SECONDS - self.blend_seconds * (len(self.kept) + 2)

    def stop_in_time(self) -> None:
        if self.left < 0:
            raise TimeIsUp


def run(job: Job) -> None:
    """data/, features/ -> members/..., budget/params.yaml: an ordinary parameter file of the members that were chosen"""
    clock = start_clock(job.options.hours, job.options.budget)
    if hosts.are_expected():
        raise UserError("HOURS=: a budget needs one host, and several are expected; train without HOURS")
    params, path = job.params, job.params.budget.portfolio
    portfolio = read_portfolio(PORTFOLIO, params) if not path and PORTFOLIO.is_file() else []
    portfolio = read_portfolio(ROOT / path, params) if path else portfolio
    search = Search(job, clock, start_device(job))
    job.echo(f"budget: {duration(clock.seconds)}, prediction and blend included")
    networks = [network for network in networks_of(params, portfolio) if is_available(search, network)]
    cheapest = min(networks, key=lambda one: (one.cost is None, one.cost or 0.0), default=None)
    if cheapest is None:
        train_first(search)
    else:
        try_network(search, cheapest, is_first=True)
        images = len(job.prepared.index)
        unit = images * search.each.get(cheapest.name, 0.0) / (cheapest.cost or 1.0)
        for network in [one for one in networks if one is not cheapest]:
            expected = unit * (network.cost or 0.0)
            if expected / SURPRISE > search.left:  # not even worth measuring it
                skip(search, f"{network.name}-linear", expected)
            else:
                try_network(search, network)
    best = sorted((one for one in networks if one.name in search.linear), key=lambda one: -search.linear[one.name])[:2]
    try_heads(search, best)
    try_trained(search, best[:1])
    job.echo(*summary(search))


def is_available(search: Search, network: Network) -> bool:
    """Whether the weights of a network can be had; a line tells if not."""
    if reason := missing_weights(network.member):
        search.job.echo(f"budget: without {network.name}, because {reason}")
    return not reason


def try_network(search: Search, network: Network, is_first: bool = False) -> None:
    """Measure a network, compute its features if they fit, and try a linear head on them.

    is_first: it is made and kept in any case.
    """
    from competition.training.features import feature_engine

    job, name, started = search.job, f"{network.name}-linear", time.monotonic()
    wanted = ((*training_parts(network.member), "test"), search.views)
    try:
        if missing_tables(job.workspace, network.member, *wanted):
            engine = feature_engine(network.member, search.device, job.params.predict.batch)
            each = image_seconds(search, network, engine)
            search.each[network.name] = each
            needs = each * sum(len(job.prepared.part(part)) for part in wanted[0])
            if is_first and needs > search.left:
                job.echo(
                    f"budget: {duration(search.clock.seconds)} do not pay for the smallest member, {name}, which takes about "
                    f"{duration(needs)}; it is made nevertheless"
                )
            elif not is_first and needs + HEAD_FACTORS["linear"] * search.head_seconds > search.left:
                return skip(search, name, needs, time.monotonic() - started)
            at_batch = (lambda: None) if is_first else search.stop_in_time
            store_missing(job, network.member, network.name, lambda: engine, wanted, at_batch)
    except TimeIsUp:
        return skip(search, name, needs, time.monotonic() - started)
    except UserError as error:  # about its weights
        if is_first:
            raise
        search.trials.append(Trial(name, time.monotonic() - started, verdict=f"left out: {error}"))
        return None
    member = frozen(network, "linear", search.views)
    if is_first:
        keep_first(search, name, member, started)
    else:
        try_member(search, name, member, started)
    if search.trials[-1].score is not None:
        search.linear[network.name] = search.sign * search.trials[-1].score
    return None


def image_seconds(search: Search, network: Network, engine: "Engine") -> float:
    """Seconds of one image under all views, decoding included, measured on one batch after the network is compiled."""
    from competition.training.features import compute_features

    job = search.job
    images = read_images(job, network.member, ("train",), network.name, CacheBudget(job.path("features"), 0, 0))
    rows = np.arange(min(len(images.ids), engine.predict_batch))
    compute_features(engine, images, rows[:1], search.views)
    started = time.monotonic()
    compute_features(engine, images, rows, search.views)
    return (time.monotonic() - started) / len(rows)


def keep_first(search: Search, name: str, member: Member, started: float) -> None:
    """Complete the first member, whose score chooses nothing, and print the first honest score."""
    job = search.job
    search.members[name] = member
    began = time.monotonic()
    complete(search, [name])
    search.head_seconds = (time.monotonic() - began) / job.params.prepare.folds
    score = held_out_score(job.prepared, runs_of(job_of(search, [name]).workspace, name)[0], FOLD)
    search.trials.append(Trial(name, time.monotonic() - started, score, "kept: the first member"))
    search.kept = [name]
    write_file(search)
    began, only = time.monotonic(), job_of(search, [name])
    inputs = load_predictions(only.workspace, prediction_sources(only.workspace, False))
    competition = job.prepared.competition
    metric, settings = metric_named(competition.metric), needs_a_label(competition)
    rows = OofRows(inputs.oof, inputs.labels, inputs.folds, inputs.tuned_folds)
    honest = fit_and_score_chain(rows, chain_settings(only.params, metric.name, settings), job.params.honest)
    classes = honest.cross_fitted.probs.shape[1]
    _, trivial = trivial_output(inputs.labels, metric, classes, job.params.honest.seed)
    search.blend_seconds = time.monotonic() - began
    job.echo(
        f"budget: first honest {metric.name} after {duration(search.clock.spent)}: "
        f"{with_error(metric.display(honest.honest.value), honest.honest.error)} by {name}; the trivial baseline scores "
        f"{metric.display(metric.evaluate(inputs.labels, trivial, classes)):.4f}"
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


def try_heads(search: Search, best: Sequence[Network]) -> None:
    """Other heads on the best networks, and heads on the features of both.  best: at most two, the best first."""
    candidates = [(f"{one.name}-{kind}", frozen(one, kind, search.views)) for one in best for kind in ("rbf", "mlp")]
    if len(best) == 2:
        both, also = f"{best[0].name}-and-{best[1].name}"[:50], (f"{best[1].name}-linear",)
        pairs = [(f"{both}-{kind}", frozen(best[0], kind, search.views, also)) for kind in ("linear", "rbf")]
        candidates = [*pairs, *candidates]
    for name, member in candidates:
        assert member.head is not None
        needs = HEAD_FACTORS[member.head.kind] * search.head_seconds
        if needs > search.left:
            skip(search, name, needs * search.job.params.prepare.folds)
        else:
            try_member(search, name, member, time.monotonic())


def try_trained(search: Search, best: Sequence[Network]) -> None:
    """Train the members of the parameter file as they are stated, and fine-tune the best network, as far as the time pays."""
    job, folds = search.job, search.job.params.prepare.folds
    count = len(job.prepared.part("train"))
    rows = count - count // folds
    candidates = {name: one for name, one in stated_members(job.params).items() if name not in search.kept}
    for network in best:
        if network.name not in candidates:
            candidates[f"{network.name}-tuned"] = fine_tuned(network, rows)
    sizes = Sizes(len(job.prepared.competition.classes), count, len(job.prepared.part("test")))
    for name, member in candidates.items():
        started, each = time.monotonic(), search.each.get(name.removesuffix("-tuned"), 0.0) / len(search.views)
        if member.weights != "none" and rows < FEW_ROWS:
            search.trials.append(Trial(name, 0.0, verdict=f"left out: {rows} rows are too few for fine-tuning"))
            continue
        least = GRADIENT_FACTOR * each * rows * folds * member.train.epochs
        if least > search.left:  # not even worth measuring it
            skip(search, name, least)
            continue
        try:
            check_training(job.prepared.competition.targets.kind, name, member.train)
            measured = replace(sizes, train=2 * STEPS * member.train.batch)
            speed = measure_speed(member, measured, search.device, job.params.predict.batch, search.views)
            settings = with_members(job.params, {name: member}, ())
            needs = cost_of(load_of(member, settings, name, sizes, search.device.replicas), speed).seconds
            if needs > search.left:
                skip(search, name, needs, time.monotonic() - started)
            else:
                try_member(search, name, member, started)
        except UserError as error:
            search.trials.append(Trial(name, time.monotonic() - started, verdict=f"left out: {error}"))


def try_member(search: Search, name: str, member: Member, started: float) -> None:
    """Train the fold model of fold 0; if its score is among the best and the time is left, the others, and keep the member.

    started: when its work began, for the table.
    """
    job, most = search.job, search.job.params.budget.most_members
    # The fold models that are compared learned from the rows of all other folds, so a member that they chose has no row that
    # took no part: what predicts fold 0 from fold 1 by chance also predicts fold 1 from fold 0 (see main_job/tune.py).
    member = replace(member, tuned_folds=tuple(range(job.params.prepare.folds)))
    search.members[name] = member
    only = job_of(search, [name], str(FOLD))
    began = time.monotonic()
    trial = Trial(name, 0.0)
    search.trials.append(trial)
    try:
        for run in runs_of(only.workspace, name):
            train_run(only, run, search.stop_in_time)
        each = time.monotonic() - began
        trial.score = held_out_score(job.prepared, runs_of(only.workspace, name)[0], FOLD)
        chosen = [one for one in search.trials if one.name in search.kept[1:] or one is trial]
        ranked = sorted(chosen, key=lambda one: -search.sign * (one.score or 0.0))[: most - 1]
        rest = each * (job.params.prepare.folds - 1)
        if trial not in ranked:
            trial.verdict = "dropped: others score more"
        elif rest > search.left:
            trial.verdict, trial.needs = f"dropped: its other folds take {duration(rest)}", rest
        else:
            complete(search, [name], search.stop_in_time)
            for one in chosen:
                one.verdict = "kept" if one in ranked else "dropped: others score more"
            search.kept = [search.kept[0], *(one.name for one in ranked)]
            trial.seconds = time.monotonic() - started
            write_file(search)
    except TimeIsUp:
        trial.verdict = "stopped: the time was up"
    trial.seconds = time.monotonic() - started


def complete(search: Search, names: Sequence[str], at_step: Callable[[], None] = lambda: None) -> None:
    """Train and predict the fold models of these members that are not current."""
    only = job_of(search, names)
    for run in [run for name in names for run in runs_of(only.workspace, name)]:
        train_run(only, run, at_step)
        if stale := stale_folds(only, run, False):
            predict_folds(only, run, stale)


def skip(search: Search, name: str, needs: float, spent: float = 0.0) -> None:
    """Note a candidate that does not fit."""
    search.trials.append(Trial(name, spent, None, f"does not fit: about {duration(needs)}", needs))


def job_of(search: Search, names: Sequence[str], fold: str = "") -> Job:
    """The job with these members, and those whose features they use."""
    job = search.job
    params = parameters_of(search, names)
    return replace(job, workspace=job.workspace.with_params(params), options=replace(job.options, fold=fold))


def parameters_of(search: Search, names: Sequence[str]) -> Params:
    others = [other for name in names if (head := search.members[name].head) for other in head.also]
    members = {name: search.members[name] for name in dict.fromkeys([*names, *others])}
    return with_members(search.job.params, members, names)


def write_file(search: Search) -> None:
    """Write the parameter file of the members that are kept, all of which are complete."""
    job, metric = search.job, search.job.prepared.competition.metric
    comments = {
        one.name: f"{metric} {one.score:.4f} on fold {FOLD}, {duration(one.seconds)}"
        for one in search.trials
        if one.score is not None
    }
    path, base = job.path(*FILE), job.options.params
    head = [
        f"Chosen within {duration(search.clock.seconds)}. `make train predict` with this file repeats the result without the",
        f"search. Fold {FOLD} chose, by models of all other folds (tuned_folds), so scores with chosen members are optimistic.",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = file_text(parameters_of(search, search.kept), path_from(path.parent, base), job.overrides, comments, head)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def summary(search: Search) -> list[str]:
    """The table of what was tried, and what twice the time would pay for."""
    rows = [
        (one.name, duration(one.seconds), "" if one.score is None else f"{one.score:.4f}", one.verdict)
        for one in search.trials
    ]
    columns = ("candidate", "cost", f"{search.job.prepared.competition.metric} of fold {FOLD}", "")
    more = max(search.left, 0.0) + search.clock.seconds
    next_ones = [one for one in search.trials if 0 < one.needs <= more]
    twice = "; ".join(f"{one.name} (about {duration(one.needs)})" for one in next_ones)
    return [
        *table_lines(columns, rows),
        f"budget: {duration(search.clock.spent)} of {duration(search.clock.seconds)} are spent before the blend; "
        + (f"twice the time would also pay for {twice}" if twice else "twice the time would pay for nothing more"),
        f"budget: {display_path(search.job.path(*FILE))}",
    ]
