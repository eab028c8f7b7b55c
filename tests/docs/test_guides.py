"""The commands of the guides run as they are written, through the Makefile, on small competitions."""

import inspect
import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import ROOT, pixels_of
from make_calls import calls_of_make
from preloaded import run_preloaded
from stages import Workspace

from competition.config.params_file import load_params
from competition.ensemble.settings import validate_params
from competition.prepare.adapters import ADAPTERS
from competition.prepare.decoding import encode_png

# Commands of the tutorial that train, which other tests do.
TRAINING = ("make download train predict", 'make train predict SET="train.epochs=20"')


def code_of(page: str) -> str:
    """The code blocks of a page, indented or fenced without another language than sh."""
    code, fence = [], None
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line.removeprefix("```")
        elif fence in ("", "sh") or (fence is None and line.startswith("    ")):
            code.append(line.strip())
    return "\n".join(code)


def commands(page: str) -> list[str]:
    """The make commands of a page without what explains them, each once."""
    lines = [line for line in code_of(page).splitlines() if line.startswith("make ")]
    return list(dict.fromkeys(" ".join(re.split(r"#|(?<=\S) {2,}", line)[0].split()) for line in lines))


def run_as_written(workspace: Workspace, line: str, sets: str = "", params: Path | None = None) -> str:
    """Run the stages that make starts for a command of a guide; return what they print.

    sets: SET of a command that has none.  params: instead of those of the workspace.
    """
    words = [re.sub(r"\bcnn\b", "slim", word) for word in shlex.split(line)[1:] if not word.startswith("PARAMS=")]
    folder = workspace.folder / "bin"
    folder.mkdir(exist_ok=True)
    process, calls = calls_of_make(folder, *words, *([f"SET={sets}"] if sets else []))
    assert process.returncode == 0 and calls, process.stderr
    output = ""
    paths = {
        "PARAMS": params or workspace.params,
        "WORK": workspace.folder / "work",
        "SUBMISSIONS": workspace.submissions,
    }
    for arguments, given in calls:
        options = {name: value for name, value in given.items() if name.startswith("GOLDFOLD_")}
        options |= {f"GOLDFOLD_{name}": str(path) for name, path in paths.items()}
        _, module, *verbs = arguments  # python -m module verbs
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **options}
        code, out, err = run_preloaded(module, verbs, workspace.folder, environment)
        assert code == 0, f"{line}: {arguments}: {out}\n{err}"
        output += out
    return output


def test_the_commands_of_the_tutorial_run_as_they_are_written(workspace: Workspace) -> None:
    lines = [line for line in commands("tutorial.md") if line not in TRAINING]
    assert lines
    for line in lines:
        run_as_written(workspace, line.replace("train.epochs=20 ", ""))  # models of 20 epochs are not trained here


CLASSES, EACH = ("daisy", "rose", "tulip"), 12
# Instead of a MobileNet with weights that are downloaded; one epoch.
SMALL = "train.epochs=1 train.probe=false train.layer_decay=1.0 train.freeze_norm=false prepare.folds=3"
for name in ("mobilenet", "linear", "rbf"):
    SMALL += f" members.{name}.architecture=cnn members.{name}.image_size=16 members.{name}.alpha=0.25 members.{name}.weights=none"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """A folder with class folders in photos/ after the commands of docs/own_images.md, and what these printed."""
    workspace = Workspace(tmp_path_factory.mktemp("own_images"))
    for label, name in enumerate(CLASSES):
        (workspace.folder / "photos" / name).mkdir(parents=True)
        for number, pixels in enumerate(pixels_of(np.full(EACH, label), seed=label)):
            (workspace.folder / "photos" / name / f"{number}.png").write_bytes(encode_png(pixels))
    (line,) = re.findall(r"^printf .* > photos.yaml$", code_of("own_images.md"), re.MULTILINE)
    line = line.replace("/home/me/photos", f"{workspace.folder}/photos").replace("recipes/", f"{ROOT}/recipes/")
    subprocess.run(["bash", "-c", line], cwd=workspace.folder, check=True)
    file = workspace.folder / "photos.yaml"
    return workspace, "".join(run_as_written(workspace, line, SMALL, file) for line in commands("own_images.md"))


def test_own_images_end_in_an_honest_score_and_a_report(photos: tuple[Workspace, str]) -> None:
    workspace, output = photos
    assert f"prepare: {3 * EACH} train, 3 classes; metric macro_f1_present" in output
    assert re.search(
        r"(?s)honest macro_f1_present \d\.\d{4} ± \S+(?: \(at \w+ \d\))? on 36 rows.*no submission is written", output
    )
    assert (workspace.folder / "work" / "photos" / "report.html").is_file()


def test_predictions_trained_elsewhere_are_blended_as_written(photos: tuple[Workspace, str]) -> None:
    workspace, folder = photos[0], photos[0].folder
    get_folds, blend, *_ = commands("external_predictions.md")
    (digest,) = re.findall(r"\b[0-9a-f]{64}\b", run_as_written(workspace, get_folds, SMALL, folder / "photos.yaml"))
    folds = pd.read_csv(folder / "work" / "photos" / "folds.csv", dtype=str)
    probs = np.where(folds["label"].to_numpy()[:, None] == np.array(CLASSES), 0.8, 0.1)
    np.savez(folder / "torch_oof.npz", ids=folds["id"].to_numpy(str), classes=np.array(CLASSES), probs=probs)
    text = (ROOT / "docs" / "external_predictions.md").read_text(encoding="utf-8")
    (elsewhere,) = re.findall(r"```yaml\n(# elsewhere.yaml.*?)```", text, re.DOTALL)
    elsewhere = elsewhere.replace("DIGEST", digest).replace(", test: torch_test.npz", "")  # there are no test images
    (folder / "elsewhere.yaml").write_text(elsewhere)
    output = run_as_written(workspace, blend, "prepare.folds=3", folder / "elsewhere.yaml")
    assert "honest macro_f1_present 1.0000" in output and "folds unknown" not in output


def test_the_example_of_older_tpu_code_is_a_valid_member_with_its_own_network(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "older_tpu_code.md").read_text(encoding="utf-8")
    (plugin,) = re.findall(r"```python\n(# old.py.*?)```", text, re.DOTALL)
    (file,) = re.findall(r"```yaml\n(# old.yaml.*?)```", text, re.DOTALL)
    (tmp_path / "old.py").write_text(plugin)
    (tmp_path / "old.yaml").write_text(file.replace("recipes/", f"{ROOT}/recipes/"))
    from competition.training.model import build  # starts TensorFlow

    params = validate_params(load_params(tmp_path / "old.yaml"))
    assert (params.train.batch, params.train.steps_per_call, params.device.tpu.zone) == (1024, 100, "us-central1-b")
    assert build(params.members["tiny"], 104).output_shape == (None, 104)


def test_the_five_functions_of_an_adapter_are_those_of_adding_a_competition_md() -> None:
    text = (ROOT / "docs" / "adding_a_competition.md").read_text(encoding="utf-8")
    documented = re.findall(r"^def (\w+)\((.*?)\) -> .*?: \.\.\.$", text, re.MULTILINE)
    assert len(documented) == 5
    for name, parameters in documented:
        names = re.findall(r"(\w+): ", parameters)
        for adapter in ADAPTERS.values():
            assert list(inspect.signature(getattr(adapter, name)).parameters) == names, (adapter.__name__, name)
