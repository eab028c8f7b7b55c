"""The documentation: it builds strictly, its commands exist, and its generated pages are complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT, params

from competition.ensemble.settings import validate_params
from pipelines.terminal.make_variables import makefile_targets
from pipelines.terminal.verbs import VERBS

sys.path.insert(0, str(ROOT / "docs"))

import generated

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MAKE_LINE = re.compile(r"^(?: {4})?make [a-z].*$", re.MULTILINE)
IN_TEXT = re.compile(r"`(make [a-z][^`]*)`")


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every make command in code blocks and in `code` of the pages."""
    found: dict[tuple[str, str], None] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fenced, indented = re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL), re.findall(r"(?m)^ {4}\S.*$", text)
        blocks = "\n".join([*fenced, *indented])
        for line in [*MAKE_LINE.findall(blocks), *IN_TEXT.findall(text)]:
            command = re.split(r"#|(?<=\S) {2,}", line)[0]  # an explanation follows two spaces
            found[page.name, " ".join(command.split())] = None
    return list(found)


COMMANDS = commands()


MAKEFILE = (ROOT / "Makefile").read_text()
(LISTED,) = re.findall(r"^VARIABLES := (.*?[^\\])$", MAKEFILE, re.MULTILINE | re.DOTALL)
VARIABLES = set(LISTED.replace("\\", "").split())
TARGETS = set(makefile_targets())


def test_the_site_builds_without_a_broken_link_and_loads_nothing(tmp_path: Path) -> None:
    options = ["-q", "-W", "--keep-going", "-d", f"{tmp_path}/read", "docs", f"{tmp_path}/site"]
    command = [sys.executable, "-m", "sphinx", *options]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    files = [file for file in (tmp_path / "site").rglob("*") if file.suffix in (".html", ".css")]
    assert len(files) > 40
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]+src=.?(?:https?:)?//|<link[^>]+stylesheet[^>]+href=.?https?:|url\(.?https?:|@import"
    )
    assert [file for file in files if loads.search(file.read_text(encoding="utf-8"))] == []
    assert "Difference" in (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_to_files_and_make_commands_name_targets_variables_and_parameters_that_exist(page: Path) -> None:
    assert len(COMMANDS) > 60 and {"README.md", "tutorial.md", "tuning.md"} <= {name for name, _ in COMMANDS}
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
    for line in (line for name, line in COMMANDS if name == page.name):
        words = re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", line)[1:]
        targets = {word for word in words if "=" not in word and re.fullmatch(r"[a-z-]+", word)}
        names = {word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)}
        assert targets and targets <= TARGETS and names <= VARIABLES, line
        file = re.search(r"PARAMS=(recipes/[\w.-]+)", line)
        assert file is None or (ROOT / file[1]).is_file(), line
        if (sets := re.search(r'SET="([^"]+)"', line)) and "..." not in sets[1] and "members" not in sets[1]:
            validate_params(params(sets[1]))


def test_every_parameter_with_its_default_and_range_and_every_verb_are_in_the_reference() -> None:
    page, verbs, settings = generated.parameters_page(), generated.verbs_page(), params()
    for block in settings.__dataclass_fields__:
        for key in getattr(getattr(settings, block), "__dataclass_fields__", {}):
            assert re.search(rf"^\| `{key}` \|", page, re.MULTILINE), key
    assert "| `backend` | `auto` | `auto`, `tensorflow`, `jax` | " in page
    assert "| `learning_rate` | `4.0e-3` | number, above 0 | peak |" in page
    assert all(f"### goldfold {verb}\n" in verbs for verb in VERBS) and "| `make grad-cam` |" in verbs
