"""What a search within a stated time knows: the candidates that were tried, the complete members, and their parameter file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from competition.budget.clock import Clock
from competition.budget.parameters import file_text, with_members
from competition.budget.portfolio import (
    PORTFOLIO,
    Network,
    Weakness,
    is_reachable,
    missing_weights,
    networks_of,
    read_portfolio,
)
from competition.cluster.connection import Machine, demand
from competition.config.errors import UserError
from competition.config.params import FROM_FILE, HUB, Member, Params
from competition.config.params_file import BUDGET_FILE
from competition.files.manifest import write_text
from competition.input_pipeline.batch_threads import cores
from competition.preflight.planning import duration
from competition.report.terminal import TUNED, TUNED_NOTE
from competition.workspace.runs import runs_of
from competition.workspace.scores import trivial_text
from pipelines.execution.open_trainer import engine_of
from pipelines.terminal.job import Job
from pipelines.terminal.options import ROOT
from pipelines.terminal.output import display_path, table_lines

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.features import FeatureEngine

NO_TIME = "no time was left to measure it"
STOPPED = "stopped: the time was up"  # nobody knows how much longer it would have taken
START_SECONDS = 3.0  # of predict and blend beside fitting the blend


class TimeIsUp(Exception):
    """The budget has no time left for what is being computed."""


@dataclass
class DoesNotFit(Exception):
    """The features of a network take more than the time that is left."""

    seconds: float  # that they would need


@dataclass
class Trial:
    """One candidate: what it cost and why it is kept or not."""

    name: str
    seconds: float
    score: float | None = None  # mean over the folds, as the metric is shown
    verdict: str = ""
    needs: float = 0.0  # seconds that it would take, about; 0 = it is complete, or cannot be made


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
    engines: "dict[str, FeatureEngine]" = field(default_factory=dict)  # network -> compiled, until its features exist
    compile_seconds: dict[str, float] = field(default_factory=dict)  # network -> until its first features were there
    widths: dict[str, int] = field(default_factory=dict)  # network -> number of its features
    column_seconds: float = 0.0  # all fold models of the first member, divided by its number of features
    blend_seconds: float = 0.0  # of a blend of one member
    # Of the features that are known; if they are weak, networks are trained whole
    weak: Weakness = field(default_factory=Weakness)
    machines: Sequence[Machine] = ()  # of the cluster that trains networks; () = this machine trains them

    @property
    def left(self) -> float:
        """Seconds for more members. Prediction and blend, whose time grows with the members, are reserved."""
        return self.clock.left - START_SECONDS - self.blend_seconds * (len(self.complete) + 2)

    def slots(self, name: str) -> tuple[int, float]:
        """(fold models of a member that are computed at once, seconds of each per second of this machine alone).

        If no machine has what the member needs, one like this counts.
        """
        cluster, device = self.job.params.cluster, self.device
        taken = demand(cluster.members.get(name, cluster.needs), self.machines) if self.machines else None
        if taken is None:
            return 1, 1.0
        needed = {name: count for name, count in taken.items() if count}
        at_once = sum(min(int(one.resources[name] / count) for name, count in needed.items()) for one in self.machines)
        kind, own = ("CPU", cores()) if device.kind == "cpu" else (device.kind.upper(), device.replicas)
        return at_once, max(own / (taken[kind] or own), 1.0)

    def stop_in_time(self) -> None:
        if self.left < 0:
            raise TimeIsUp


def offered_networks(params: Params) -> list[Network]:
    """The networks of the members and of the portfolio file, see networks_of."""
    path = ROOT / params.budget.portfolio if params.budget.portfolio else PORTFOLIO
    is_there = bool(params.budget.portfolio) or path.is_file()
    return networks_of(params, read_portfolio(path, params) if is_there else [])


def with_weights(search: Search, networks: Sequence[Network]) -> list[Network]:
    """The networks whose weights can be had; one line for each reason tells of the others."""
    reachable = cache(is_reachable)  # a firewall may take seconds to say no
    reasons = {network.name: missing_weights(network.member, reachable) for network in networks}
    for network in networks:
        weights = network.member.weights
        if network.is_stated and reasons[network.name] and weights != "imagenet" and not weights.startswith(HUB):
            raise UserError(
                f"{network.name}: {reasons[network.name]} ({network.member.architecture}); correct the parameter file, "
                f'or SET="members.{network.name}.weights=PATH"'
            )
    for reason in dict.fromkeys(filter(None, reasons.values())):
        names = [name for name, one in reasons.items() if one == reason]
        search.job.echo(f"budget: without {', '.join(names)}, because {reason}")
    available = [network for network in networks if not reasons[network.name]]
    for network in available:
        if network.is_stated and network.member.architecture == FROM_FILE:
            engine_of(search.job, network.member, network.name, search.device)  # an error now and not after minutes
    return available


def skip(search: Search, name: str, needs: float, spent: float = 0.0) -> None:
    """Note a candidate that does not fit."""
    left = duration(max(search.left, 0.0))
    verdict = f"does not fit: needs about {duration(needs)}, {left} are left beside prediction and blend"
    if needs < 1:
        verdict, needs = NO_TIME, 0.0
    search.trials.append(Trial(name, spent, None, verdict, needs))


def job_of(search: Search, names: Sequence[str]) -> Job:
    """The job with these members."""
    job, members = search.job, {name: search.members[name] for name in names}
    params = with_members(job.params, members, names, search.views)
    return replace(job, workspace=job.workspace.with_params(params), options=replace(job.options, fold=""))


def write_file(search: Search) -> None:
    """Write the parameter file of the complete members."""
    job, metric = search.job, search.job.prepared.competition.metric
    scored = [trial for trial in search.trials if trial.score is not None]
    comments = {trial.name: f"{metric} {trial.score:.4f}, {duration(trial.seconds)}" for trial in scored}
    path, base = job.work / BUDGET_FILE, job.options.params
    head = [
        f"Made within {duration(search.clock.seconds)}. `make train predict` with this file repeats the result.",
        f"Beside each member: the mean of its folds' {metric}, and what the last call spent on it; networks share their features.",
    ]
    base_path = Path(os.path.relpath(base.resolve(), path.parent.resolve()))  # as the file states it
    params = job_of(search, search.complete).params
    write_text(path, file_text(params, base_path, job.workspace.overrides, comments, head))


def summary(search: Search) -> list[str]:
    """The table of what was tried, and what twice the time would pay for."""
    rows = []
    for trial in search.trials:
        score = ""
        if trial.score is not None:  # with the mark of rows that chose hyperparameters, as in the tables of runs
            score = f"{trial.score:.4f}"
            if trial.name in search.members:  # not given up since
                run = runs_of(job_of(search, [trial.name]).workspace, trial.name)[0]
                score += TUNED * bool(run.depends["tuned_folds"])
        rows.append((trial.name, duration(trial.seconds), score, trial.verdict))
    other_seconds = search.clock.spent - sum(trial.seconds for trial in search.trials)
    rows.append(("start, and looks at the networks", duration(max(other_seconds, 0.0)), "", ""))
    columns = ("candidate", "spent", f"mean of the folds' {search.job.prepared.competition.metric}", "")
    marked = [f"budget: {TUNED_NOTE}"] if any(TUNED in score for _, _, score, _ in rows) else []
    more, next_ones = max(search.left, 0.0) + search.clock.seconds, list[Trial]()
    for trial in search.trials:  # in the order in which they would be tried
        if 0 < trial.needs <= more:
            next_ones.append(trial)
            more -= trial.needs
    unmeasured = [one.name for one in search.trials if one.verdict in (NO_TIME, STOPPED)]
    fitting = [f"{one.name} (about {duration(one.needs)})" for one in next_ones]
    twice = "; ".join([*fitting, *(f"{name}, perhaps" for name in unmeasured)])
    return [
        *table_lines(columns, rows),
        *marked,
        f"budget: {trivial_text(search.job.prepared)}",
        f"budget: {search.clock.spent:,.0f} of {search.clock.seconds:,.0f} s are spent; prediction and blend take up to "
        f"{search.clock.left - search.left:,.0f} s more; "
        + (f"twice the time would also pay for {twice}" if twice else "twice the time would pay for nothing more"),
        f"budget: {display_path(search.job.work / BUDGET_FILE)}",
    ]
