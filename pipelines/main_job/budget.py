"""Train within a stated time the members that promise most, and write them to an ordinary parameter file.

The features of networks are computed once each, the cheapest network first, then the best expected; heads are fitted to them;
networks are fine-tuned with what is left. Costs, the order of the portfolio and losses on inner training rows decide what is made, never
a score on held-out rows: every member enters the blend, whose weights are fitted and scored as always, so the honest score rests on all
rows. A member is trained and predicted completely before the file names it, so that `make predict HOURS=...` writes a submission at any
moment.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from competition.budget.clock import Pace, start_clock
from competition.budget.parameters import MOST_VIEWS
from competition.budget.portfolio import Network, frozen
from competition.config.errors import UserError
from competition.config.params import Member
from competition.ensemble.honest_score import fit_and_score_chain
from competition.ensemble.nested_cross_fit import OofRows
from competition.ensemble.settings import chain_settings
from competition.ensemble.stored_predictions import IDENTITY
from competition.preflight.planning import duration
from competition.prepare.index import require_images
from competition.report.terminal import with_error
from competition.workspace.dependencies import training_parts
from competition.workspace.ensemble_inputs import load_predictions, prediction_sources
from competition.workspace.scores import trivial_text
from pipelines.execution.budget_search import (
    DoesNotFit,
    Search,
    Trial,
    job_of,
    offered_networks,
    skip,
    summary,
    with_weights,
    write_file,
)
from pipelines.execution.budget_training import (
    complete,
    fine_tune,
    fine_tune_first,
    make_member,
    preferred_network,
)
from pipelines.execution.cluster import machines_of_cluster
from pipelines.execution.first_look import (
    engine_for,
    has_missing_features,
    look_at_sample,
    seconds_if_too_slow,
    settle_views,
)
from pipelines.execution.open_trainer import WantedFeatures, engine_of, start_device, store_missing
from pipelines.terminal import hosts
from pipelines.terminal.job import Job

# Kind -> (factor, more): a head takes about as long as a linear one on factor x F + more features (900 and 6,000 photos).
HEAD_COSTS = {"linear": (1, 0), "rbf": (0, 1_000), "mlp": (3, 300)}
HEAD_SHARE = 0.1  # of the time that is left: a head that takes more waits until networks were fine-tuned


def run(job: Job) -> None:
    """data/, features/ -> members/..., budget/params.yaml: an ordinary parameter file of the members that were made"""
    clock = start_clock(job.options.hours, job.options.budget)
    if hosts.are_expected():
        raise UserError("HOURS=: a budget needs one host, and several are expected; train without HOURS")
    offered = offered_networks(job.params)
    require_images(job.prepared.index, [one.name for one in offered])
    views = dict.fromkeys((IDENTITY, *job.params.predict.views))  # identity first: they are given up from the end
    search = Search(job, clock, start_device(job), tuple(views)[:MOST_VIEWS])
    if job.options.cluster:
        search.machines = machines_of_cluster(job, search.device)
    job.echo(f"budget: {clock.seconds:,.0f} s, prediction and blend included")
    networks = with_weights(search, offered)
    cheapest = min(networks, key=lambda one: (one.cost is None, one.cost or 0.0), default=None)
    if cheapest is None:
        train_first(search, offered)
    else:
        others = [one for one in networks if one is not cheapest]
        make_first(search, cheapest, others)
        fine_tune_first(search, cheapest, others)
        make_features(search, cheapest, others)
    usable = [one for one in networks if f"{one.name}-linear" in search.complete]
    late_heads = make_heads(search, usable)
    fine_tune(search, networks)
    for name, member, needs in late_heads:
        make_member(search, name, member, needs=needs)
    job.echo(*summary(search))


def make_first(search: Search, network: Network, others: Sequence[Network]) -> None:
    """Make the cheapest member in any case, and print the first honest score.  others: the best expected first."""
    name, started = f"{network.name}-linear", time.monotonic()
    if has_missing_features(search, network):
        heads = look_at_sample(search, network)
        settle_views(search, network, others, heads)
        compute_features(search, network, first_heads=heads)
    if search.left < 0:
        stated = duration(search.clock.seconds)
        search.job.echo(f"budget: {stated} do not pay for the smallest member, {name}; it is made nevertheless")
    seconds = keep_first(search, name, frozen(network, "linear", search.views), started)
    search.column_seconds = seconds / search.widths.get(network.name, 1_000)


def make_features(search: Search, first: Network, networks: Sequence[Network]) -> None:
    """A linear head on each network whose features fit into the time, the best expected first."""
    images = len(search.job.prepared.index)
    for network in networks:
        name, started = f"{network.name}-linear", time.monotonic()
        if seconds := seconds_if_too_slow(search, first, network):  # not even worth measuring it
            search.each[network.name] = seconds / images
            skip(search, name, seconds * len(search.views))
            continue
        try:
            compute_features(search, network)
        except DoesNotFit as error:
            skip(search, name, error.seconds, time.monotonic() - started)
        except UserError as error:  # about its weights
            if network.is_stated:
                raise
            search.trials.append(Trial(name, time.monotonic() - started, verdict=f"left out: {error}"))
        else:
            head = frozen(network, "linear", search.views)
            make_member(search, name, head, started, head_needs(search, network, "linear"))


def compute_features(search: Search, network: Network, first_heads: float | None = None) -> None:
    """Compute the missing features of a network, view after view, and raise DoesNotFit as soon as the time does not suffice.

    Until a second member is complete, the views but the first can be given up: then a network fits if its first view does.
    first_heads: seconds of the heads of the first network, whose first view is computed in any case; None = another network.
    """
    job, parts = search.job, (*training_parts(network.member), "test")
    if not has_missing_features(search, network):
        return
    count, engine = sum(len(job.prepared.part(part)) for part in parts), engine_for(search, network)
    del search.engines[network.name]
    heads = head_needs(search, network, "linear") if first_heads is None else first_heads
    columns = [search.widths.get(name.removesuffix("-linear"), 1_000) for name in search.complete[:1]]
    first = search.column_seconds * sum(columns)  # seconds of the heads of the first member
    can_give_up_views = len(search.complete) <= 1
    pace, started, views = Pace(), time.monotonic(), search.views

    def check(images_to_fit: int, before: int, done: int, _: int) -> None:
        pace.add(before + done)
        so_far = pace.times[-1][1]
        # Without the other views the first member is made again.
        again = first if pace.each * (count * len(views) - so_far) + heads > search.left else 0.0
        needs = pace.each * (images_to_fit - so_far) + heads + again
        if images_to_fit and (search.left < 0 or needs > search.left):
            raise DoesNotFit(needs)

    for number, view in enumerate(views):
        is_certain = first_heads is not None and number == 0
        # Images that must fit; 0 = not checked.
        to_fit = 0 if is_certain else count * (number + 1 if can_give_up_views else len(views))
        before = number * count  # images of all views and parts so far
        try:
            for part in parts:
                wanted = WantedFeatures((part,), (view,), keeps_images=len(search.views) > 1)
                store_missing(job, network.member, network.name, lambda: engine, wanted, partial(check, to_fit, before))
                before += len(job.prepared.part(part))
        except DoesNotFit:
            search.each[network.name] = pace.each
            if not can_give_up_views or number == 0 or (search.complete and search.left < heads + first):
                raise
            give_up_views(search, network)
            break
    search.each[network.name] = pace.each or (time.monotonic() - started) / max(count, 1) / len(views)


def give_up_views(search: Search, network: Network) -> None:
    """Use the first view only, also for the member that is complete."""
    search.views = search.views[:1]
    search.job.echo(f"budget: {network.name} fits under one view only, so {search.views[0]} is the only one")
    for name in list(search.complete):
        member = search.members[name]
        assert member.head is not None
        search.complete.remove(name)
        make_member(search, name, replace(member, head=replace(member.head, views=search.views)))


def keep_first(search: Search, name: str, member: Member, started: float) -> float:
    """Make the first member, print its honest score, and return the seconds of its fold models."""
    job = search.job
    search.members[name] = member
    which = "" if search.trials else "first "
    began = time.monotonic()
    score = complete(search, name)
    seconds = time.monotonic() - began
    search.trials.append(Trial(name, time.monotonic() - started, score, "kept"))
    search.complete.append(name)
    write_file(search)
    began, only = time.monotonic(), job_of(search, [name])
    inputs = load_predictions(only.workspace, prediction_sources(only.workspace, False))
    competition = job.prepared.competition
    metric, settings = job.prepared.metric, chain_settings(only.params, job.prepared.metric, competition.needs_a_label)
    rows = OofRows(inputs.oof, inputs.labels, inputs.folds, inputs.tuned_folds)
    honest = fit_and_score_chain(rows, settings, job.params.honest)
    search.blend_seconds = time.monotonic() - began
    job.echo(
        f"budget: {which}honest {metric.name} after {duration(search.clock.spent)}: "
        f"{with_error(metric.display(honest.honest.value), honest.honest.error, metric.name)} by {name}; {trivial_text(job.prepared)}"
    )
    return seconds


def train_first(search: Search, offered: Sequence[Network]) -> None:
    """Without any pretrained network: train the first member of the parameter file as it is stated.

    offered: networks whose weights cannot be had. Raises UserError with what to download if there is nothing to train.
    """
    members = search.job.params.members.items()
    # No student, whose teachers come first.
    stated = {name: one for name, one in members if one.weights == "none" and one.head is None and not one.teacher}
    if not stated:
        for network in offered[:1]:  # says which file it lacks, and where that is
            engine_of(search.job, network.member, network.name, search.device)
        raise UserError(
            "HOURS=: no candidate has weights on this machine; state a weights file (`weights: path/to/file.weights.h5`) of a "
            "member, or connect the network"
        )
    name = next(iter(stated))
    search.job.echo(f"budget: without pretrained weights; {name} is trained as it is stated")
    keep_first(search, name, stated[name], time.monotonic())


def make_heads(search: Search, networks: Sequence[Network]) -> list[tuple[str, Member, float]]:
    """Other heads on the stored features, and return those that wait, with their seconds.

    Those of networks other than the preferred one wait (of none, if the folds prefer none), and those that take too much of the
    time that is left.
    """
    late, preferred = [], preferred_network(search, networks)
    for kind in ("rbf", "mlp"):
        for network in networks:
            name, member = f"{network.name}-{kind}", frozen(network, kind, search.views)
            needs = head_needs(search, network, kind)
            if preferred in ("", network.name) and needs < HEAD_SHARE * search.left:
                make_member(search, name, member, needs=needs)
            else:
                late.append((name, member, needs))
    return late


def head_needs(search: Search, network: Network, kind: str) -> float:
    """Seconds of all fold models of a head, about."""
    factor, more = HEAD_COSTS[kind]
    return search.column_seconds * (factor * search.widths.get(network.name, 1_000) + more)
