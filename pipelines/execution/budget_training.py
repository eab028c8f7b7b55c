"""Train the members of a budget: networks for as many epochs as the time that is left pays for, and heads.

Where pretrained features say little about the images, all layers of a network are trained.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from competition.budget.parameters import with_members
from competition.budget.portfolio import (
    EPOCHS,
    FEW_ROWS,
    Network,
    Weakness,
    fine_tuned,
    unanimous_choice,
    weakness,
)
from competition.config.errors import UserError
from competition.config.params import TIMM, Member, Train
from competition.preflight.planning import Sizes, cost_of, cost_on_machines, load_of, time_on_machines
from competition.prepare.targets import check_training
from competition.workspace.dependencies import fold_manifest_path, fold_model, incomplete_folds
from competition.workspace.runs import runs_of
from competition.workspace.scores import held_out_score
from pipelines.execution.budget_search import STOPPED, Search, TimeIsUp, Trial, job_of, skip, write_file
from pipelines.execution.cluster import predict_on_cluster, train_on_cluster
from pipelines.execution.first_look import others_say_more
from pipelines.execution.prediction import predict_folds, stale_folds
from pipelines.execution.speed import measure_speed
from pipelines.execution.training import KEPT_WEIGHTS, train_run

GRADIENT_FACTOR = 1.2  # training the last layers costs at least so many times as much as a pass under one view
# Compiling a training step to measure it takes at least so many times as long as compiling a pass. On one H100 with JAX, 78 s of a
# budget of 108 s were spent on a step that then did not fit.
COMPILE_FACTOR = {"tensorflow": 2.0, "jax": 4.0}
RESERVE = 1.15  # times the measured cost of fine-tuning
MORE_EPOCHS = 1.5  # times those of a complete training are worth training again
STEPS = 3  # training steps per epoch of the measurement


@dataclass(frozen=True)
class Candidate:
    """A network to train."""

    name: str
    member: Member
    fewest: int  # epochs
    network: Network | None = None  # that is fine-tuned; None = a member as it is stated


def fine_tune_first(search: Search, network: Network, others: Sequence[Network]) -> None:
    """If features are weak, train all layers of the cheapest network before the features of others, if it can be trained at all.

    Not if those of another network say more about the images; they are computed first.  others: the best expected first.
    """
    weak = weakness_of(search, network)
    if weak.is_weak and not others_say_more(search, network, others):
        search.weak = weak
        search.job.echo(
            f"budget: pretrained features say little about these images, so networks are trained whole, {network.name} before "
            "the features of others"
        )
        for candidate in candidates_to_train(search, [network])[:1]:
            train_if_it_fits(search, candidate)


def weakness_of(search: Search, network: Network) -> Weakness:
    """How weak the features of a network are; not at all if it cannot be trained."""
    if rows_of_fold(search) < FEW_ROWS or network.member.architecture.startswith(TIMM):
        return Weakness()
    competition, train = search.job.prepared.competition, search.job.prepared.part("train")
    rows = competition.targets.class_rows(train["label"].to_numpy(), len(competition.classes))
    losses = inner_losses(search, network)
    # No row that a fold holds out takes part in what that fold says.
    of_folds = [rows[(train["fold"] != fold).to_numpy()] for fold in range(len(losses))]
    return weakness(losses, of_folds, competition.targets.kind)


def fine_tune(search: Search, networks: Sequence[Network]) -> None:
    """Train what is worth it with the time that is left: fine-tuned networks, and the members of the file as they are stated."""
    if not search.weak.is_weak:
        keras = [one for one in networks if not one.member.architecture.startswith(TIMM)]
        preferred = preferred_network(search, keras)
        search.weak = next((weakness_of(search, one) for one in networks if one.name == preferred), search.weak)
    for candidate in candidates_to_train(search, networks):
        train_if_it_fits(search, candidate)


def candidates_to_train(search: Search, networks: Sequence[Network]) -> list[Candidate]:
    """The best network fine-tuned, the members of the file, then the other networks; not those that were tried.

    The best one is the preferred one of those that Keras computes, or the best expected one if the folds disagree.
    """
    kind = search.job.prepared.competition.targets.kind
    # Without heads, and without students, whose teachers come first.
    networks_of_file = {n: one for n, one in search.job.params.members.items() if one.head is None and not one.teacher}
    stated = [Candidate(name, one, one.train.epochs) for name, one in networks_of_file.items()]
    keras = [one for one in networks if not one.member.architecture.startswith(TIMM)]
    preferred = preferred_network(search, keras)
    keras.sort(key=lambda one: one.name != preferred)  # stable
    tuned = []
    for network in keras:
        member = fine_tuned(network, rows_of_fold(search), kind, search.weak)
        tuned.append(Candidate(f"{network.name}-tuned", member, EPOCHS[0] + member.train.freeze_epochs, network))
    tried = {trial.name for trial in search.trials}
    return [one for one in (*tuned[:1], *stated, *tuned[1:]) if one.name not in tried]


def preferred_network(search: Search, networks: Sequence[Network]) -> str:
    """The network whose linear head has the least loss on inner rows in every fold; "" if the folds disagree.

    Only those whose features are complete can be.
    """
    usable = [one for one in networks if f"{one.name}-linear" in search.complete]
    return unanimous_choice({network.name: inner_losses(search, network) for network in usable})


def inner_losses(search: Search, network: Network) -> list[float]:
    """Losses of a network's linear head, one per fold model, on the inner rows that chose the head's strength."""
    name = f"{network.name}-linear"
    (run,) = runs_of(job_of(search, [name]).workspace, name)
    files = [fold_manifest_path(run, fold).with_name("history.csv") for fold in range(search.job.params.prepare.folds)]
    return [float(pd.read_csv(file)["loss"].iloc[-1]) for file in files]


def rows_of_fold(search: Search) -> int:
    """Training rows of a fold model, about."""
    count = len(search.job.prepared.part("train"))
    return count - count // search.job.params.prepare.folds


def train_if_it_fits(search: Search, candidate: Candidate) -> None:
    """Train a candidate for the epochs that fit, see train_epochs_that_fit, or note why it is not trained."""
    job, name, rows, network = search.job, candidate.name, rows_of_fold(search), candidate.network
    measured = network.name if network else name  # a member of the file is a network, too
    each = search.each.get(measured, 0.0)
    start = COMPILE_FACTOR[search.device.backend] * search.compile_seconds.get(measured, 0.0)
    slots, slowdown = search.slots(name)
    fold_seconds = [GRADIENT_FACTOR * each * rows * candidate.fewest] * job.params.prepare.folds
    least = start + time_on_machines(fold_seconds, slots, start_seconds=0.0, slowdown=slowdown)
    if network and not each and f"{network.name}-linear" not in search.complete:
        # Its features failed, or there was no time to learn their speed; a training step takes longer than they do.
        features = [one.verdict for one in search.trials if one.name == f"{network.name}-linear"]
        reason = "left out" if any(verdict.startswith("left out") for verdict in features) else "does not fit"
        search.trials.append(Trial(name, 0.0, verdict=f"{reason}: its features do not"))
    elif candidate.member.weights != "none" and rows < FEW_ROWS:
        verdict = f"left out: frozen features score better on few training rows ({rows}, under {FEW_ROWS})"
        if name in job.params.members:
            verdict += "; without HOURS it is trained"
        search.trials.append(Trial(name, 0.0, verdict=verdict))
    elif least > search.left and all(missing_shares(search, name, one)[0] for one in variants(search, candidate)):
        skip(search, name, least)  # not even worth measuring it
    else:
        started = time.monotonic()
        try:
            train_epochs_that_fit(search, candidate)
        except UserError as error:
            search.trials.append(Trial(name, time.monotonic() - started, verdict=f"left out: {error}"))


def train_epochs_that_fit(search: Search, candidate: Candidate) -> None:
    """Measure a training step, and train a member for as many of its epochs as fit into the time.

    If not even the fewest do, a fine-tuned network is predicted under the identity view alone.
    """
    job, prepared, started = search.job, search.job.prepared, time.monotonic()
    name, member = candidate.name, candidate.member
    check_training(prepared.competition.targets.kind, name, member.train)
    sizes = Sizes(len(prepared.competition.classes), len(prepared.part("train")), len(prepared.part("test")))
    few = replace(sizes, train=2 * STEPS * member.train.batch)
    targets = prepared.competition.targets
    speed, engine = measure_speed(member, few, search.device, job.params, search.views, targets)
    settings = with_members(job.params, {name: member}, (), search.views)
    # This process trains with the measured engine, and predicts with it if it is kept.
    # A member with tuned values or several seeds is compiled for its run.
    is_reused = not search.machines and runs_of(job.workspace.with_params(settings), name)[0].member == member
    if is_reused:
        is_kept = engine.model.count_params() <= KEPT_WEIGHTS
        speed = replace(speed, ready=0.0, ready_to_predict=0.0 if is_kept else speed.ready_to_predict)
    needs: list[tuple[Member, float]] = []  # seconds
    for variant in variants(search, candidate):
        load = load_of(variant, settings, name, sizes, search.device.replicas)
        cost = cost_on_machines(load, speed, *search.slots(name)) if search.machines else cost_of(load, speed)
        untrained, unpredicted = missing_shares(search, name, variant)
        needs.append((variant, RESERVE * (untrained * cost.train + unpredicted * cost.predict)))
    fitting = [variant for variant, seconds in needs if seconds <= search.left]
    if not fitting:
        return skip(search, name, min(seconds for _, seconds in needs), time.monotonic() - started)
    chosen = fitting[0]
    completed = next((variant for variant, seconds in needs if not seconds), None)  # that of the most epochs
    if completed is not None and chosen.train.epochs < MORE_EPOCHS * completed.train.epochs:
        chosen = completed  # the time is worth more for other candidates than for a few epochs more
    if is_reused:
        params = with_members(job.params, {name: chosen}, (), search.views)
        job.engines[runs_of(job.workspace.with_params(params), name)[0].digest] = engine
    make_member(search, name, chosen, started)
    whole, seconds = needs[0]
    if chosen is not whole and name in search.complete:
        skip(search, f"{name} for {whole.train.epochs} epochs under all views", seconds)
    return None


def variants(search: Search, candidate: Candidate) -> list[Member]:
    """What a candidate can be trained as, the best first: fewer epochs, then, of a fine-tuned network, under the identity view alone."""
    member, network = candidate.member, candidate.network
    members = []
    for views in [(), ("identity",)] if network and len(search.views) > 1 else [()]:
        # The most first, at least `fewest`, and not those of the last layer alone.
        least = max(candidate.fewest, min(member.train.freeze_epochs + 1, member.train.epochs))
        for epochs in range(member.train.epochs, least - 1, -1):
            train = replace(member.train, epochs=epochs)
            if network and search.weak.is_weak:
                train = at_higher_rate(train, rows_of_fold(search))
            members.append(replace(member, views=views, train=train))
    return members


def missing_shares(search: Search, name: str, member: Member) -> tuple[float, float]:
    """Shares of a member's folds that are to be trained, and to be trained or predicted; earlier calls made the others."""
    params = with_members(search.job.params, {name: member}, (), search.views)
    runs, folds = runs_of(search.job.workspace.with_params(params), name), params.prepare.folds
    untrained = [fold for fold in range(folds) if not all(fold_model(run, fold).is_current for run in runs)]
    return len(untrained) / folds, len(incomplete_folds(runs, params, range(folds))) / folds


def at_higher_rate(train: Train, rows: int) -> Train:
    """The training with the full learning rate already at half of the steps from which on one after a probe has it.

    Where features are weak, the solved last layer needs less protection: three epochs of drawn letters score .62 so, and .51 at 0.6 of
    the rate. But two epochs at the full rate end below the solved layer on turned photos.
    """
    from competition.input_pipeline.batches import steps_per_epoch
    from competition.training.network_trainer import share_after_probe

    # The share grows with the square of the steps.
    share = share_after_probe(train, steps_per_epoch(rows, train.batch) * train.epochs)
    return replace(train, learning_rate=float(f"{train.learning_rate * min(4.0, 1 / share):.3g}"))


def make_member(search: Search, name: str, member: Member, started: float | None = None, needs: float = 0.0) -> None:
    """Train and predict a member if the time suffices, and write the parameter file with it.

    started: when its work began, for the table; None = now.  needs: seconds that it will take, about.
    """
    started = time.monotonic() if started is None else started
    if needs > search.left and missing_shares(search, name, member)[1]:
        return skip(search, name, needs, time.monotonic() - started)
    trial = Trial(name, 0.0)
    search.members[name] = member
    try:
        trial.score = complete(search, name, search.stop_in_time)
    except TimeIsUp:
        trial.verdict = STOPPED
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
    only = replace(job_of(search, [name]), at_step=at_step)
    runs = runs_of(only.workspace, name)
    if search.machines and search.members[name].head is None:
        train_on_cluster(only, [name])
        predict_on_cluster(only, [(one, stale_folds(only, one, False)) for one in runs])
    else:
        for one in runs:
            train_run(only, one)
            if stale := stale_folds(only, one, False):
                predict_folds(only, one, stale)
    folds = range(search.job.params.prepare.folds)
    return float(np.mean([held_out_score(search.job.prepared, runs[0], fold) for fold in folds]))
