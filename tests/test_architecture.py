"""docs/architecture.md lists every module, and no other."""

import re

from builders import ROOT


def test_every_module_is_listed_and_every_listed_module_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = {
        f"{package}/{module}"
        for package, section in re.findall(r"^## (\S+):.*?$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        for module in re.findall(r"^\| `(\w+\.py)` \| \S.* \|$", section, re.MULTILINE)
    }
    files = [file for folder in ("competition", "pipelines") for file in (ROOT / folder).rglob("*.py")]
    assert listed == {str(file.relative_to(ROOT)) for file in files if file.name != "__init__.py"}
