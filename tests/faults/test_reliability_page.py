"""docs/reliability.md lists all 72 cases, each with tests that exist; every fault point has a test in this folder."""

import ast
import re
from functools import cache
from pathlib import Path

from builders import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
CASES = {
    int(number): cells
    for number, *cells in re.findall(r"^(\d+)\. \*\*(.+?)\*\*: (.+?)\. (`\w.*::.*)$", PAGE, re.MULTILINE)
}
REFERENCE = re.compile(r"`((?:\w+/)*test_\w+\.py)::(test_\w+)`")


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_all_72_cases_have_a_behaviour_and_tests_that_exist() -> None:
    assert sorted(CASES) == list(range(1, 73))
    for case, behaviour, tests in CASES.values():
        references = REFERENCE.findall(tests)
        assert case and behaviour and references
        assert "".join(f"`{file}::{name}`" for file, name in references) == tests.replace(", ", ""), case
    assert [f"{file}::{name}" for file, name in REFERENCE.findall(PAGE) if name not in names_in(file)] == []


def test_every_point_has_a_test_and_every_tested_point_exists() -> None:
    files = [file for folder in ("competition", "pipelines") for file in (ROOT / folder).rglob("*.py")]
    tests = "\n".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    points = [ast.literal_eval(name) for name in re.findall(r"(?<!def )\bfault_point\(([^,)]+)", source)]
    assert sorted(points) == sorted(set(re.findall(r'["\s]([a-z]+\.[a-z_]+)(?:@[^"\s:]*)?:\d+', tests)))
