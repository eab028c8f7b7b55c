"""Train within a stated time the members that promise most, and write them to an ordinary parameter file.

The features of networks are computed once each, the cheapest network first, then the best expected; heads are fitted to them;
networks are fine-tuned with what is left. Costs and the order of the portfolio decide what is made, never a score on held-out rows:
every member enters the blend, whose weights are fitted and scored as always, so the honest score rests on all rows. A member is trained
and predicted completely before the file names it, so that `make predict HOURS=...` writes a submission at any moment.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from competition.budget.clock import Pace, start_clock
from competition.budget.parameters import MOST_VIEWS, with_members
from competition.budget.portfolio import (
    EPOCHS,
    FEW_ROWS,
    Network,
    epochs_to_try,
    fine_tuned,
    frozen,
    stated_members,
    unanimous_choice,
)
from competition.config.errors import UserError
from competition.config.params import TIMM, Member
from competition.ensemble.honest import fit_and_score_chain
from competition.ensemble.metrics import metric_named
from competition.ensemble.nested import OofRows
from competition.ensemble.settings import chain_settings
from competition.preflight.planning import Sizes, cost_of, cost_on_machines, duration, load_of, time_on_machines
from competition.prepare.adapter_types import needs_a_label
from competition.prepare.targets import check_training
from competition.report.terminal import with_error
from competition.workspace.dependencies import fold_manifest_path, training_parts
from competition.workspace.ensemble_inputs import load_predictions, prediction_sources
from competition.workspace.runs import runs_of
from competition.workspace.scores import held_out_score, trivial_text
from pipelines.execution.budget_search import (
    DoesNotFit,
    Search,
    TimeIsUp,
    Trial,
    job_of,
    offered_networks,
    skip,
    summary,
    with_weights,
    write_file,
)
from pipelines.execution.cluster import machines_of_cluster, predict_on_cluster, train_on_cluster
from pipelines.execution.first_look import (
    engine_for,
    has_missing_features,
    look_at_sample,
    seconds_if_too_slow,
    settle_views,
)
from pipelines.execution.prediction import predict_folds, stale_folds
from pipelines.execution.trainer import (
    WantedFeatures,
    engine_of,
    measure_speed,
    start_device,
    store_missing,
)
from pipelines.execution.training import train_run
from pipelines.terminal import hosts
from pipelines.terminal.runner import Job

# A head takes about as long as a linear one on so many times its features, and so many more (900 and 6,000 photos).
HEAD_COSTS = {"linear": (1, 0), "rbf": (0, 1_000), "mlp": (3, 300)}
HEAD_SHARE = 0.1  # of the time that is left: a head that takes more waits until networks were fine-tuned
GRADIENT_FACTOR = 1.2  # training the last layers costs at least so many times as much as a pass under one view
COMPILE_FACTOR = 2.0  # compiling a training step takes at least so many times as long as compiling a pass
RESERVE = 1.15  # times the measured cost of fine-tuning
STEPS = 3  # training steps per epoch of the measurement


def run(job: Job) -> None:
    """data/, features/ -> members/..., budget/params.yaml: an ordinary parameter file of the members that were made"""
    clock = start_clock(job.options.hours, job.options.budget)
    if hosts.are_expected():
        raise UserError("HOURS=: a budget needs one host, and several are expected; train without HOURS")
    offered = offered_networks(job.params)
    search = Search(job, clock, start_device(job), job.params.predict.views[:MOST_VIEWS])
    if job.options.cluster:
        search.machines = machines_of_cluster(job, search.device)
    job.echo(f"budget: {duration(clock.seconds)}, prediction and blend included")
    networks = with_weights(search, offered)
    cheapest = min(networks, key=lambda one: (one.cost is None, one.cost or 0.0), default=None)
    if cheapest is None:
        train_first(search, offered)
    else:
        others = [one for one in networks if one is not cheapest]
        make_first(search, cheapest, others)
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
        heads = look_at_sample(search, network, engine_for(search, network))
        settle_views(search, network, others, heads)
        compute_features(search, network, first_heads=heads)
    if search.left < 0:
        search.job.echo(
            f"budget: {duration(search.clock.seconds)} do not pay for the smallest member, {name}; it is made nevertheless"
        )
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
    first_heads: of the first network, which is computed under one view in any case, the seconds of its heads.
    """
    job, parts = search.job, (*training_parts(network.member), "test")
    if not has_missing_features(search, network):
        return
    count, engine = sum(len(job.prepared.part(part)) for part in parts), engine_for(search, network)
    del search.engines[network.name]
    heads = head_needs(search, network, "linear") if first_heads is None else first_heads
    is_flexible = len(search.complete) <= 1
    pace, started, views = Pace(), time.monotonic(), search.views

    def check(images_to_fit: int, before: int, done: int, _: int) -> None:
        pace.add(before + done)
        # Without the other views the first member is made again.
        again = heads if pace.seconds_to(count * len(views)) + heads > search.left else 0.0
        needs = pace.seconds_to(images_to_fit) + heads + again
        if images_to_fit and (search.left < 0 or needs > search.left):
            raise DoesNotFit(needs)

    for number, view in enumerate(views):
        to_fit = 0 if first_heads is not None and not number else count * (number + 1 if is_flexible else len(views))
        before = number * count  # images of all views and parts so far
        try:
            for part in parts:
                wanted = WantedFeatures((part,), (view,), keeps_images=len(search.views) > 1)
                store_missing(job, network.member, network.name, lambda: engine, wanted, partial(check, to_fit, before))
                before += len(job.prepared.part(part))
        except DoesNotFit:
            search.each[network.name] = pace.each
            if not (is_flexible and number) or (search.complete and search.left < 2 * heads):
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
    metric, settings = metric_named(competition.metric), needs_a_label(competition)
    rows = OofRows(inputs.oof, inputs.labels, inputs.folds, inputs.tuned_folds)
    honest = fit_and_score_chain(rows, chain_settings(only.params, metric.name, settings), job.params.honest)
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
    stated = {name: one for name, one in stated_members(search.job.params).items() if one.weights == "none"}
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


def preferred_network(search: Search, networks: Sequence[Network]) -> str:
    """The network whose linear head has the least loss on inner rows in every fold; "" if the folds disagree."""
    inner_losses = {}
    for network in networks:
        name = f"{network.name}-linear"
        (run,) = runs_of(job_of(search, [name]).workspace, name)
        files = [fold_manifest_path(run, n).with_name("history.csv") for n in range(search.job.params.prepare.folds)]
        # Of each fold model, on the inner rows that chose the strength of its head.
        inner_losses[network.name] = [float(pd.read_csv(file)["loss"].iloc[-1]) for file in files]
    return unanimous_choice(inner_losses)


def make_heads(search: Search, networks: Sequence[Network]) -> list[tuple[str, Member, float]]:
    """Other heads on the stored features, and return those that wait, with their seconds.

    Those of networks other than the preferred one wait, and those that take too much of the time that is left.
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


def fine_tune(search: Search, networks: Sequence[Network]) -> None:
    """Train what is worth it with the time that is left: fine-tuned networks, and the members of the file as they are stated."""
    job, folds = search.job, search.job.params.prepare.folds
    count = len(job.prepared.part("train"))
    rows = count - count // folds
    for name, member, fewest in candidates_to_train(search, networks, rows):
        network = name.removesuffix("-tuned")
        each = search.each.get(network, 0.0)
        slots, slowdown = search.slots(name)
        start = COMPILE_FACTOR * search.compile_seconds.get(network, 0.0)
        least = start + time_on_machines(
            [GRADIENT_FACTOR * each * rows * fewest] * folds, slots, start_seconds=0.0, slowdown=slowdown
        )
        if not each and network in {one.name for one in networks} and f"{network}-linear" not in search.complete:
            # Its features failed, or there was no time to learn their speed; a training step takes longer than they do.
            failed = any(
                one.name == f"{network}-linear" and one.verdict.startswith("left out") for one in search.trials
            )
            search.trials.append(
                Trial(name, 0.0, verdict=f"{'left out' if failed else 'does not fit'}: its features do not")
            )
        elif member.weights != "none" and rows < FEW_ROWS:
            verdict = f"left out: frozen features score better on few training rows ({rows}, under {FEW_ROWS})"
            if name in job.params.members:
                verdict += "; without HOURS it is trained"
            search.trials.append(Trial(name, 0.0, verdict=verdict))
        elif least > search.left:  # not even worth measuring it
            skip(search, name, least)
        else:
            started = time.monotonic()
            try:
                train_epochs_that_fit(search, name, member, fewest)
            except UserError as error:
                search.trials.append(Trial(name, time.monotonic() - started, verdict=f"left out: {error}"))


def candidates_to_train(search: Search, networks: Sequence[Network], rows: int) -> list[tuple[str, Member, int]]:
    """(name, member, fewest epochs): the best network fine-tuned, the members of the file, then the other networks.

    The best one is the preferred one of those that Keras computes, or the best expected one if the folds disagree.
    rows: of a fold model.
    """
    params, kind = search.job.params, search.job.prepared.competition.targets.kind
    stated = [
        (name, one, one.train.epochs) for name, one in stated_members(params).items() if name not in search.complete
    ]
    keras = [one for one in networks if not one.member.architecture.startswith(TIMM)]
    preferred = preferred_network(search, [one for one in keras if f"{one.name}-linear" in search.complete])
    keras.sort(key=lambda one: one.name != preferred)  # stable
    members = ((f"{one.name}-tuned", fine_tuned(one, rows, kind)) for one in keras)
    tuned = [(name, one, EPOCHS[0] + one.train.freeze_epochs) for name, one in members]
    return [*tuned[:1], *stated, *tuned[1:]]


def train_epochs_that_fit(search: Search, name: str, member: Member, fewest: int) -> None:
    """Measure a training step, and train the member for as many of its epochs as fit into the time, at least the fewest.

    If these do not fit, a fine-tuned network is predicted under the identity view alone.
    """
    job, prepared, started = search.job, search.job.prepared, time.monotonic()
    check_training(prepared.competition.targets.kind, name, member.train)
    sizes = Sizes(len(prepared.competition.classes), len(prepared.part("train")), len(prepared.part("test")))
    few = replace(sizes, train=2 * STEPS * member.train.batch)
    speed = measure_speed(member, few, search.device, job.params.predict.batch, search.views)
    settings = with_members(job.params, {name: member}, (), search.views)
    needs: list[tuple[Member, float]] = []  # seconds
    for views in [(), ("identity",)] if name.endswith("-tuned") and len(search.views) > 1 else [()]:
        for epochs in epochs_to_try(member.train, fewest):
            variant = replace(member, views=views, train=replace(member.train, epochs=epochs))
            load = load_of(variant, settings, name, sizes, search.device.replicas)
            cost = cost_on_machines(load, speed, *search.slots(name)) if search.machines else cost_of(load, speed)
            needs.append((variant, RESERVE * cost.seconds))
    fitting = next((variant for variant, seconds in needs if seconds <= search.left), None)
    if fitting is None:
        return skip(search, name, min(seconds for _, seconds in needs), time.monotonic() - started)
    make_member(search, name, fitting, started)
    whole, seconds = needs[0]
    if fitting is not whole and name in search.complete:
        skip(search, f"{name} for {whole.train.epochs} epochs under all views", seconds)
    return None


def make_member(search: Search, name: str, member: Member, started: float | None = None, needs: float = 0.0) -> None:
    """Train and predict a member if the time suffices, and write the parameter file with it.

    started: when its work began, for the table; None = now.  needs: seconds that it will take, about.
    """
    started = time.monotonic() if started is None else started
    if needs > search.left:
        return skip(search, name, needs, time.monotonic() - started)
    trial = Trial(name, 0.0)
    search.members[name] = member
    try:
        trial.score = complete(search, name, search.stop_in_time)
    except TimeIsUp:
        trial.verdict, trial.needs = "stopped: the time was up", max(needs, time.monotonic() - started)
        del search.members[name]
    trial.seconds = time.monotonic() - started
    search.trials.append(trial)
    if trial.score is not None:
        trial.verdict = "kept"
        search.complete.append(name)
        write_file(search)
    return None


def complete(search: Search, name: str, at_step: Callable[[], None] = lambda: None) -> float:
    """Train and predict the fold models of this member that are not current, and return the mean of their scores.

    Networks are trained on the cluster, if there is one.
    """
    only = job_of(search, [name])
    runs = runs_of(only.workspace, name)
    if search.machines and search.members[name].head is None:
        train_on_cluster(only, [name], at_step)
        predict_on_cluster(only, [(one, stale_folds(only, one, False)) for one in runs], at_step)
    else:
        for one in runs:
            train_run(only, one, at_step)
            if stale := stale_folds(only, one, False):
                predict_folds(only, one, stale)
    folds = range(search.job.params.prepare.folds)
    return float(np.mean([held_out_score(search.job.prepared, runs[0], fold) for fold in folds]))
