import math
from dataclasses import replace
from pathlib import Path

from builders import params

from competition.preflight.planning import START_SECONDS, Load, Speed, cost_on_machines, time_on_machines
from competition.workspace.workspace import Workspace
from pipelines.machines.plan import plan_machines
from pipelines.terminal.job import Job
from pipelines.terminal.options import Options

LOAD = Load(runs=10.0, steps=1000, scored=0, predicted=0)
SPEED = Speed(ready=20.0, step=0.36, scored=0.0, predicted=0.0, ready_to_predict=0.0)  # 6 minutes for each fold model


def test_four_machines_share_the_work_and_start_their_processes() -> None:
    planning = Job(Workspace(Path(), params()), Options(machines=4), Path())
    plan = plan_machines(planning, {"a": (LOAD, SPEED), "b": (LOAD, SPEED)}, starting=10.0)["machines"]
    assert math.isclose(plan["seconds"], 5 * (360 + 30))  # 20 fold models on 4 machines, each in a process of its own
    assert math.isclose(plan["alone"], 20 * 360 + 2 * 30)  # a machine alone starts one process for each member
    assert "4 machines like this one train in 32 min, a single one in 2.0 h" in planning.echoed[0]
    assert time_on_machines([50.0, 100.0, 60.0, 90.0], 2, start_seconds=10.0) == 170.0  # the longest first


def test_a_member_on_a_cluster_costs_rounds_of_its_fold_models_and_a_process_for_each() -> None:
    load, speed = replace(LOAD, predicted=1_000), replace(SPEED, predicted=0.1, ready_to_predict=5.0)
    cost = cost_on_machines(load, speed, slots=4, slowdown=2.0)  # 10 fold models in 3 rounds
    assert math.isclose(cost.train, 3 * 2 * (360 + 20 + START_SECONDS))
    assert math.isclose(cost.predict, 3 * 2 * (10 + 5 + START_SECONDS))
