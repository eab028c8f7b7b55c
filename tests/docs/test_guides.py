"""The documentation builds, its commands exist, and those of the guides run as they are written, through the Makefile."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import ROOT, params, pixels_of, save_images
from make_calls import calls_of_make
from preloaded import run_preloaded
from stages import Workspace

from competition.config.params_file import load_params
from competition.ensemble.settings import validate_params
from competition.prepare.adapters import ADAPTERS
from pipelines.terminal.make_variables import makefile_targets

# Commands of the tutorial that train, which other tests do.
TRAINING = ("make download train predict", 'make train predict SET="train.epochs=20"')
PAGES = {path.name: path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def code_of(page: str) -> str:
    """The code blocks of a page, indented or fenced without another language than sh."""
    code, fence = [], None
    for line in text_of(page).splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line.removeprefix("```")
        elif fence in ("", "sh") or (fence is None and line.startswith("    ")):
            code.append(line.strip())
    return "\n".join(code)


def without_explanation(line: str) -> str:
    return " ".join(re.split(r"#|(?<=\S) {2,}", line)[0].split())


def commands(page: str) -> list[str]:
    """The make commands in the code blocks of a page, each once."""
    lines = [line for line in code_of(page).splitlines() if line.startswith("make ")]
    return list(dict.fromkeys(map(without_explanation, lines)))


def run_as_written(workspace: Workspace, line: str, sets: str = "", params: Path | None = None) -> str:
    """Run the stages that make starts for a command of a guide; return what they print.

    sets: SET of a command that has none.  params: instead of those of the workspace.
    """
    words = [re.sub(r"\bcnn\b", "slim", word) for word in shlex.split(line)[1:] if not word.startswith("PARAMS=")]
    (programs := workspace.folder / "bin").mkdir(exist_ok=True)
    process, calls = calls_of_make(programs, *words, *([f"SET={sets}"] if sets else []))
    assert process.returncode == 0 and calls, process.stderr
    output, folder = "", workspace.folder
    paths = {"PARAMS": params or workspace.params, "WORK": folder / "work", "SUBMISSIONS": workspace.submissions}
    options = {f"GOLDFOLD_{name}": str(path) for name, path in paths.items()}
    for arguments, given in calls:
        _, module, *verbs = arguments  # python -m module verbs
        of_make = {name: value for name, value in given.items() if name.startswith("GOLDFOLD_")}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **of_make, **options}
        code, out, err = run_preloaded(module, verbs, folder, environment)
        assert code == 0, f"{line}: {arguments}: {out}\n{err}"
        output += out
    return output


def test_the_commands_of_the_tutorial_run_as_they_are_written(workspace: Workspace) -> None:
    lines = [line for line in commands("tutorial.md") if line not in TRAINING]
    assert lines
    for line in lines:
        run_as_written(workspace, line.replace("train.epochs=20 ", ""))  # models of 20 epochs are not trained here


# Instead of a MobileNet with weights that are downloaded; one epoch.
SMALL = "train.epochs=1 train.probe=false train.layer_decay=1.0 train.freeze_norm=false prepare.folds=3"
for name in ("linear", "rbf"):
    SMALL += f" members.{name}.architecture=cnn members.{name}.image_size=16 members.{name}.alpha=0.25 members.{name}.weights=none"


def test_own_images_end_in_an_honest_score_and_a_report(tmp_path: Path) -> None:
    workspace, file = Workspace(tmp_path), tmp_path / "photos.yaml"
    for label, name in enumerate(("daisy", "rose", "tulip")):
        files = [f"{name}/{number}.png" for number in range(12)]
        save_images(tmp_path / "photos", files, pixels_of(np.full(12, label), seed=label))
    (line,) = re.findall(r"^printf .* > photos.yaml$", code_of("own_images.md"), re.MULTILINE)
    line = line.replace("/home/me/photos", f"{tmp_path}/photos").replace("recipes/", f"{ROOT}/recipes/")
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    output = "".join(run_as_written(workspace, line, SMALL, file) for line in commands("own_images.md"))
    assert "prepare: 36 train, 3 classes; metric macro_f1_present" in output
    honest = r"honest macro_f1_present \d\.\d{4} ± \S+(?: \(at \w+ \d\))? on 36 rows"
    assert re.search(rf"(?s){honest}.*no submission is written", output)
    page = (tmp_path / "work" / "photos" / "report.html").read_text()
    assert re.search("make train predict [^<]*HOURS=0.5", page)  # a next step, because all members have frozen features
    # The same folder with predictions that were trained elsewhere.
    (elsewhere,) = re.findall(r"```yaml\n(# elsewhere.yaml.*?)```", text_of("external_predictions.md"), re.DOTALL)
    (tmp_path / "elsewhere.yaml").write_text(elsewhere.replace("DIGEST", "d" * 64))
    assert list(validate_params(load_params(tmp_path / "elsewhere.yaml")).external) == ["torch"]


def test_the_example_of_older_tpu_code_is_a_valid_member_with_its_own_network(tmp_path: Path) -> None:
    text = text_of("older_tpu_code.md")
    (plugin,) = re.findall(r"```python\n(# old.py.*?)```", text, re.DOTALL)
    (file,) = re.findall(r"```yaml\n(# old.yaml.*?)```", text, re.DOTALL)
    (tmp_path / "old.py").write_text(plugin)
    (tmp_path / "old.yaml").write_text(file.replace("recipes/", f"{ROOT}/recipes/"))
    from competition.training.model import build  # starts TensorFlow

    params = validate_params(load_params(tmp_path / "old.yaml"))
    assert (params.train.batch, params.train.steps_per_call, params.device.tpu.zone) == (1024, 100, "us-central1-b")
    assert build(params.members["tiny"], 104, plugins=params.plugins).output_shape == (None, 104)


def test_the_three_functions_of_an_adapter_are_those_of_adding_a_competition_md() -> None:
    pattern = r"^def (\w+)\((.*?)\) -> .*?: \.\.\.$"
    documented = re.findall(pattern, text_of("adding_a_competition.md"), re.MULTILINE)
    assert len(documented) == 3
    for name, parameters in documented:
        names = re.findall(r"(\w+): ", parameters)
        for adapter in ADAPTERS.values():
            assert list(inspect.signature(getattr(adapter, name)).parameters) == names, (adapter.__name__, name)


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


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_make_commands_name_targets_variables_and_parameters_that_exist(page: str) -> None:
    assert len(commands("tutorial.md")) > 5
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(page))
    assert [link for link in links if "://" not in link and not (PAGES[page].parent / link).exists()] == []
    in_text = re.findall(r"`(make [a-z][^`]*)`", text_of(page))
    for line in [*commands(page), *map(without_explanation, in_text)]:
        words = re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", line)[1:]
        targets = {word for word in words if "=" not in word and re.fullmatch(r"[a-z-]+", word)}
        names = {word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)}
        assert targets and targets <= TARGETS and names <= VARIABLES, line
        file = re.search(r"PARAMS=(recipes/[\w.-]+)", line)
        assert file is None or (ROOT / file[1]).is_file(), line
        if (sets := re.search(r'SET="([^"]+)"', line)) and "..." not in sets[1] and "members" not in sets[1]:
            validate_params(params(sets[1]))
