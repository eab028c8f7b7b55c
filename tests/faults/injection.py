"""Run code and stages with faults at the points of competition/config/faults.py; the faults are real signals and errors."""

import ast
import os
import re
import signal
import textwrap
from pathlib import Path

from builders import ROOT
from preloaded import run_preloaded
from stages import StageResult, Workspace

INJECT = Path(__file__).parent / "inject"
ARM = f"import runpy; runpy.run_path({str(INJECT / 'sitecustomize.py')!r})"  # a new Python does so by itself
KILLED = -signal.SIGKILL


def environment(faults: str = "", **variables: str) -> dict[str, str]:
    """Variables of a process in which the faults of tests/faults/inject/sitecustomize.py happen."""
    return {
        **os.environ,
        "PYTHONPATH": f"{INJECT}{os.pathsep}{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "GOLDFOLD_FAULTS": faults,
        **variables,
    }


def run_stage(
    workspace: Workspace, faults: str, stage: str, *arguments: str, sets: str = "", **variables: str
) -> StageResult:
    return workspace.run(stage, *arguments, sets=sets, code=ARM, **environment(faults, **variables))


def run_code(code: str, *arguments: object, faults: str = "", **variables: str) -> StageResult:
    """Run Python code in a process of its own, with `arguments` in sys.argv[1:]."""
    armed = f"{ARM}\n{textwrap.dedent(code)}"
    return StageResult(*run_preloaded("", [*map(str, arguments)], ROOT, environment(faults, **variables), armed))


def points_in_source() -> dict[str, str]:
    """Name of every fault point -> the module in which it is."""
    points: dict[str, str] = {}
    for folder in ("competition", "pipelines"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fault_point":
                    name = ast.literal_eval(node.args[0])  # raises for a name that is computed
                    assert name not in points, f"{name} is in {points[name]} and in {file}"
                    points[name] = file.relative_to(ROOT).as_posix()
    return points


def points_in_tests() -> set[str]:
    """Names of fault points that appear in the strings of tests/faults/test_*.py."""
    texts = [file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py")]
    return set(re.findall(r'["\s]([a-z]+\.[a-z_]+)(?:@[^"\s:]*)?:\d+', "\n".join(texts)))
