"""What a cluster of spot machines does to training: finish time, wasted work, cost, and the best checkpoint interval.

    python -m benchmarks.cluster_simulation [--repeats 20]

5 folds of 6 members of 0.5 to 3 hours each, on 1 to 32 machines that take one fold model at a time. The decisions are the
driver's own (competition/cluster/schedule.py); machines and time are simulated. Prints ratios to the lower bound, which no
schedule can beat: all work divided by the machines, or the longest fold model.

Failures per hour and machine: 0.04 is once in the 24 hours that Google lets a preemptible machine live; 0.25 and 1 are
markets in which machines are taken away every four hours and every hour. Availability traces that were published:
github.com/skypilot-org/spot-traces.
"""

import argparse

import numpy as np

from competition.cluster.schedule import Task
from competition.cluster.simulation import (
    HOUR,
    Failures,
    Outcome,
    Simulation,
    equal_machines,
    lower_bound,
)

FOLDS = 5
MEMBER_HOURS = (0.5, 0.7, 1.0, 1.4, 2.0, 3.0)  # of one fold model
START_SECONDS = 180.0  # of a process: imports, images, compile; minutes on a TPU
EPOCH_SECONDS = 300.0  # of work between two checkpoints
CHECKPOINT_SECONDS = 5.0  # 492 MB to a bucket
REPLACE_SECONDS = 300.0  # until another machine is there
SPOT_PRICE = 0.3  # of the price on demand: v2-8 to v6e-8 cost 0.18 to 0.40 of it in pipelines/machines/prices.yaml
RATES = (0.0, 0.04, 0.25, 1.0)  # failures per hour and machine
MACHINES = (1, 2, 4, 8, 16, 32)


def tasks() -> list[Task]:
    return [
        Task(f"member {hours} h fold {fold}", f"member {hours} h", hours * HOUR)
        for hours in MEMBER_HOURS
        for fold in range(FOLDS)
    ]


def failures(per_hour: float, interval: float = EPOCH_SECONDS) -> Failures:
    return Failures(per_hour, REPLACE_SECONDS, interval, CHECKPOINT_SECONDS if interval < np.inf else 0.0)


def outcomes(machines: int, failing: Failures, repeats: int) -> list[Outcome]:
    work = tasks()
    cluster = equal_machines(machines, {task.member for task in work}, START_SECONDS)
    return [Simulation(cluster, work, failing, seed).run() for seed in range(repeats if failing.per_hour else 1)]


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def print_machines(repeats: int) -> None:
    work = tasks()
    total = sum(task.seconds for task in work)
    print(f"{len(work)} fold models, {total / HOUR:.0f} h of work, a checkpoint every {EPOCH_SECONDS:.0f} s of work")
    print("machines  failures/h  hours  to the bound  wasted  cost to one machine on demand")
    for machines in MACHINES:
        bound = lower_bound(work, machines)
        for rate in RATES:
            results = outcomes(machines, failures(rate), repeats)
            hours = mean([result.seconds for result in results]) / HOUR
            wasted = mean([result.wasted_seconds for result in results]) / total
            price = SPOT_PRICE if rate else 1.0
            cost = price * mean([result.machine_seconds for result in results]) / total
            print(f"{machines:8}  {rate:10g}  {hours:5.1f}  {hours * HOUR / bound:12.2f}  {wasted:6.1%}  {cost:6.2f}")


def print_intervals(repeats: int) -> None:
    print("\n8 machines: mean finish time relative to the best interval, by work between checkpoints")
    intervals = (60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0, np.inf)
    print("failures/h  " + "  ".join(f"{'none' if np.isinf(i) else f'{i:.0f} s':>6}" for i in intervals) + "  formula")
    for rate in RATES[1:]:
        seconds = [mean([r.seconds for r in outcomes(8, failures(rate, i), repeats)]) for i in intervals]
        cells = "  ".join(f"{value / min(seconds):6.2f}" for value in seconds)
        print(f"{rate:10g}  {cells}  {best_interval(failures(rate)):.0f} s")


def best_interval(failing: Failures) -> float:
    """Seconds of work between checkpoints that waste least (Young 1974): sqrt(2 x cost x mean time between failures)."""
    return (2 * failing.checkpoint_cost * HOUR / failing.per_hour) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="simulations of each line with failures")
    repeats = parser.parse_args().repeats
    print_machines(repeats)
    print_intervals(repeats)


if __name__ == "__main__":
    main()
