"""The report's section on TPUs: the results of preflight and plan."""

import json
from pathlib import Path

from competition.preflight.planning import duration
from competition.preflight.results import COLUMNS, NOTE, cells, result_from_json
from competition.preflight.topology import GIB, TOPOLOGIES
from competition.report.page import Block, Section, Table, Text
from competition.report.terminal import Scores


def tpu_section(work: Path) -> Section | None:
    """None if neither preflight nor plan was run."""
    blocks: list[Block] = []
    for file in sorted((work / "preflight").glob("*.json")):
        if file.stem in TOPOLOGIES:
            result = json.loads(file.read_text(encoding="utf-8"))
            topology = TOPOLOGIES[result["topology"]]
            rows = [
                cells(member, step, result_from_json(raw))
                for member, steps in result["members"].items()
                for step, raw in steps.items()
            ]
            head = f"{topology.name}, {topology.devices} x {topology.memory / GIB:.2f} GiB, {result['backend']}"
            table = Table(list(COLUMNS), rows, 2, NOTE[0].upper() + NOTE[1:] + ".")
            blocks += [Text([f"Preflight for {head}"]), table]
            blocks += [Text(result["changes"], True)] if result["changes"] else []
    if (work / "plan.json").is_file():
        blocks += plan_blocks(json.loads((work / "plan.json").read_text(encoding="utf-8")))
    sources = "preflight/<topology>.json, plan.json · make preflight, make plan"
    return Section("tpu", "Preflight and plan", sources, blocks) if blocks else None


def plan_blocks(plan: Scores) -> list[Block]:
    machine = plan.get("topology") or plan.get("machine", "this machine")
    rows = [
        [name, *(duration(cost[key]) for key in ("train", "predict", "saved"))]
        for name, cost in plan["members"].items()
    ]
    total = f"Plan for {machine}: {duration(plan['seconds'])}"
    if span := plan.get("between"):
        total += f", an estimate between {duration(span['high'])} and {duration(span['low'])}"
    lines = [f"{total}."]
    if kaggle := plan.get("kaggle"):
        sessions = "1 session" if kaggle["sessions"] == 1 else f"{kaggle['sessions']} sessions"
        share = f"{kaggle['share_of_week']:.0%} of a week's quota"
        lines.append(f"On Kaggle {sessions}, {kaggle['hours']:.1f} h in all, {share}.")
    lines += [
        f"{bill['dollars']:,.2f} dollars in {bill['region']} ({bill['kind']}, price of {bill['as_of']}, accelerator only)."
        for bill in plan.get("cloud", ())
    ]
    return [Text(lines), Table(["member", "training", "predicting", "saved by one compilation"], rows)]
