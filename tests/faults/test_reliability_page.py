"""docs/reliability.md lists all 72 cases, each with tests that exist."""

import ast
import re
from functools import cache

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
