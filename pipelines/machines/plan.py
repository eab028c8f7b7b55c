"""Estimate hours, sessions and cost, from steps measured on this machine or from the preflight for a TPU."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from competition.config.digests import digest_of
from competition.config.errors import UserError, counted
from competition.config.params import Member
from competition.config.yaml_text import Tree, read_yaml
from competition.files.manifest import write_json
from competition.preflight.planning import (
    HOUR,
    START_SECONDS,
    Cost,
    Load,
    Sizes,
    Speed,
    bills,
    cost_of,
    cost_of_features,
    duration,
    load_of,
    sessions_for,
    sizes_of,
    speed_by_preflight,
    time_on_machines,
    training_seconds,
)
from competition.preflight.topology import topology_named
from competition.workspace.studies import network_dependencies, tuned_member
from pipelines.execution.selection import selected_members
from pipelines.execution.speed import compiled_features, measure_speed, pass_seconds
from pipelines.terminal.job import Job, start_backend
from pipelines.terminal.output import display_path

PRICES = Path(__file__).with_name("prices.yaml")


def run(job: Job) -> None:
    """params.yaml, preflight/<topology>.json -> work/<competition>/plan.json, and a summary on the screen"""
    prices, sizes = read_yaml(PRICES), sizes_of(job.path("data"), job.params)
    folds = job.params.prepare.folds
    job.echo(f"plan: {sizes.train:,} images in {folds} folds, {sizes.test:,} to predict, {sizes.classes} classes")
    plan = plan_topology(job, sizes, prices) if job.options.topology else plan_this_machine(job, sizes)
    write_json(job.path("plan.json"), {"sizes": sizes, **plan})
    job.echo(f"plan: full results in {display_path(job.path('plan.json'))}")


def plan_this_machine(job: Job, sizes: Sizes) -> dict[str, Any]:
    started = time.monotonic()
    start_backend(job)
    from competition.training.device import open_device

    device, costs, works = open_device(job.params.device), {}, {}
    starting = time.monotonic() - started
    trained, frozen = members_to_plan(job)
    for name, member in frozen.items():
        job.echo(f"plan {name}: measuring some images of {member.image_size} pixels")
        engine, ready = compiled_features(member, device, job.params)
        costs[name] = cost_of_features(member, job.params, sizes, ready, pass_seconds(engine, member))
    for name in trained:
        member = tuned_member(job.workspace, name)
        job.echo(f"plan {name}: measuring some steps with images of {member.training_size} pixels")
        plain, views = member.without_pretrained_weights, job.params.views_of(member)
        speed, _ = measure_speed(plain, sizes, device, job.params, views)
        load = load_of(member, job.params, name, sizes, device.replicas)
        costs[name], works[name] = cost_of(load, speed), (load, speed)
    job.echo(*member_lines(costs, frozen))
    # `make train predict` starts TensorFlow once.
    total = sum(cost.train + cost.predict for cost in costs.values()) + starting
    job.echo(f"plan: {duration(total)} on this machine ({device.replicas} x {device.kind}), measured now")
    result = {"machine": f"{device.replicas} x {device.kind}", "members": costs, "seconds": total}
    return result | plan_machines(job, works, starting)


def plan_topology(job: Job, sizes: Sizes, prices: Tree) -> dict[str, Any]:
    topology = topology_named(job.options.topology)
    file = job.path("preflight", f"{topology.name}.json")
    if not file.exists():
        raise UserError(f"{display_path(file)} is missing; run `make preflight TOPOLOGY={topology.name}` first")
    preflight = dict(json.loads(file.read_text(encoding="utf-8"))["members"])
    utilisation = prices["utilisation"]
    plans: dict[str, dict[str, Cost]] = {"high": {}, "likely": {}, "low": {}}
    works: dict[str, tuple[Load, Speed]] = {}
    trained, frozen = members_to_plan(job)
    for name in (*frozen, *trained):
        steps = preflight.get(name, {})
        needed = ("predict",) if name in frozen else ("train", "predict")
        views = len(job.params.views_of(job.params.members[name]))
        if missing := [step for step in needed if steps.get(step, {}).get("verdict") != "fits"]:
            raise UserError(
                f"member {name}: preflight for {topology.name} has no passing result for {' and '.join(missing)}; "
                f"run `make preflight TOPOLOGY={topology.name}` and do what it says"
            )
        if name in frozen:
            ready = steps["predict"]["lower_seconds"] + steps["predict"]["compile_seconds"]
            each = steps["predict"]["roofline"] / steps["predict"]["batch"] / views  # of one image under one view
            for case, costs in plans.items():
                costs[name] = cost_of_features(frozen[name], job.params, sizes, ready, each / utilisation[case])
            continue
        load = load_of(tuned_member(job.workspace, name), job.params, name, sizes, topology.devices)
        for case, costs in plans.items():
            speed = speed_by_preflight(steps["train"], steps["predict"], views, utilisation[case])
            costs[name] = cost_of(load, speed)
            if case == "likely":
                works[name] = load, speed
    job.echo(*member_lines(plans["likely"], frozen))
    seconds = {case: sum(cost.train + cost.predict for cost in costs.values()) for case, costs in plans.items()}
    job.echo(
        f"plan: {duration(seconds['likely'])} of {topology.name}, an estimate (between {duration(seconds['high'])} and "
        f"{duration(seconds['low'])}: nobody has measured how much of its peak this TPU reaches with these members)"
    )
    result: dict[str, Any] = {"topology": topology.name, "members": plans["likely"]}
    result |= {"seconds": seconds["likely"], "between": seconds}
    if topology.name == prices["kaggle"]["topology"]:
        kaggle = prices["kaggle"]
        hours = [kaggle[key] for key in ("session_hours", "weekly_hours", "setup_hours")]
        estimate = sessions_for(seconds["likely"], *hours)
        job.echo(
            f"plan: on Kaggle {counted(estimate.sessions, 'session')} of at most {kaggle['session_hours']} h, "
            f"{estimate.hours:.1f} h in all: {estimate.share_of_week:.0%} of a week's {kaggle['weekly_hours']} h, "
            f"so {counted(estimate.weeks, 'week')} (limits of {kaggle['as_of']})"
        )
        result["kaggle"] = estimate
    result["cloud"] = bills(seconds["likely"] / HOUR, topology.name, prices["cloud"])
    for bill in result["cloud"]:
        price = f"{bill.kind}, price of {bill.as_of}, the accelerator alone"
        job.echo(f"plan: {bill.dollars:,.2f} dollars in {bill.region} ({price})")
    return result | plan_machines(job, works, START_SECONDS)


def plan_machines(job: Job, works: Mapping[str, tuple[Load, Speed]], starting: float) -> dict[str, Any]:
    """With MACHINES=: the time of training on as many machines like this one.

    starting: seconds until TensorFlow is there, which every process on a machine needs.
    """
    machines = job.options.machines
    if not machines or not works:  # heads alone need no second machine
        return {}
    fold_models = list[float]()  # seconds of each
    for load, speed in works.values():
        fold_models += [training_seconds(load, speed)] * max(round(load.runs), 1)
    start = starting + sum(speed.ready for _, speed in works.values()) / len(works)
    estimate = time_on_machines(fold_models, machines, start)
    alone = sum(fold_models) + len(works) * start  # without a cluster, a process trains all fold models of a member
    kind = f"with {job.options.topology}" if job.options.topology else "like this one"
    job.echo(
        f"plan: {counted(machines, 'machine')} {kind} train in {duration(estimate)}, a single one in {duration(alone)}; "
        f"{duration(start * len(fold_models))} of machine time start processes"
    )
    return {"machines": {"number": machines, "seconds": estimate, "alone": alone}}


def members_to_plan(job: Job) -> tuple[list[str], dict[str, Member]]:
    """(names of the members whose networks are trained, frozen networks by the name of their first member)."""
    trained, networks = list[str](), dict[str, tuple[str, Member]]()
    for name in selected_members(job):
        member = job.params.members[name]
        if member.head is None:
            trained.append(name)
        else:
            networks.setdefault(digest_of(network_dependencies(member)), (name, member))
    return trained, dict(networks.values())


def member_lines(costs: Mapping[str, Cost], frozen: Mapping[str, Member]) -> list[str]:
    lines = []
    for name, cost in costs.items():
        if name in frozen:
            lines.append(
                f"plan: {name}: features of all images {duration(cost.train)}, once for all heads on this network; "
                "a head takes seconds to minutes more"
            )
            continue
        lines.append(f"plan: {name}: training {duration(cost.train)}, predicting {duration(cost.predict)}")
    return lines
