"""The documentation: it builds strictly, its commands exist, and its generated pages are complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT

from competition.config.params import Params
from competition.config.params_file import load_params, parse_overrides
from competition.ensemble.settings import validate_params
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
        blocks = "\n".join(
            [*re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL), *re.findall(r"^ {4}\S.*$", text, re.MULTILINE)]
        )
        for line in [*MAKE_LINE.findall(blocks), *IN_TEXT.findall(text)]:
            command = re.split(r"#|(?<=\S) {2,}", line)[0]  # an explanation follows two spaces
            found[page.name, " ".join(command.split())] = None
    return list(found)


COMMANDS = commands()


def variables_of_make() -> set[str]:
    (listed,) = re.findall(r"^VARIABLES := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    return set(listed.replace("\\", "").split())


def targets_of_make() -> set[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(phony.split())


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
    for file in files:
        assert not loads.search(file.read_text(encoding="utf-8")), file
    reference = tmp_path / "site" / "reference"
    assert "Difference" in (reference / "python.html").read_text(encoding="utf-8")
    assert "warmup" in (reference / "parameters.html").read_text(encoding="utf-8")


def test_the_pages_have_commands_and_their_links_lead_to_files() -> None:
    assert len(COMMANDS) > 60 and {"README.md", "tutorial.md", "tuning.md"} <= {page for page, _ in COMMANDS}
    for page in PAGES:
        links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == [], page


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_make_command_names_targets_variables_and_parameters_that_exist(page: str, line: str) -> None:
    words = re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", line)[1:]
    targets = [word for word in words if "=" not in word and re.fullmatch(r"[a-z-]+", word)]
    assert targets and set(targets) <= targets_of_make(), f"{page}: {line}"
    names = {word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)}
    assert names <= variables_of_make(), f"{page}: {line}"
    file = re.search(r"PARAMS=(recipes/[\w.-]+)", line)
    assert file is None or (ROOT / file[1]).is_file(), f"{page}: {line}"
    if (sets := re.search(r'SET="([^"]+)"', line)) and "..." not in sets[1] and "members" not in sets[1]:
        validate_params(load_params(ROOT / "params.yaml", tuple(parse_overrides(sets[1]))))


def test_every_parameter_is_in_the_reference_with_its_default_and_range() -> None:
    page = generated.parameters_page()
    params = load_params(ROOT / "params.yaml")
    for block in Params.__dataclass_fields__:
        value = getattr(params, block)
        for key in getattr(value, "__dataclass_fields__", {}):
            assert re.search(rf"^\| `{key}` \|", page, re.MULTILINE), f"{block}.{key}"
    assert "| `warmup` | `0.1` | number, 0 to 1 | " in page
    assert "| `backend` | `auto` | `auto`, `tensorflow`, `jax` | " in page
    assert "| `learning_rate` | `4.0e-3` | number, above 0 | peak |" in page


def test_every_verb_is_in_the_reference() -> None:
    page = generated.verbs_page()
    assert all(f"### goldfold {verb}\n" in page for verb in VERBS)
    assert all(f"| `make {target}` |" in page for target in ("download", "report", "grad-cam", "docs"))
