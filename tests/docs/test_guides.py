"""The commands of the guides run as they are written, on a small competition that is trained already."""

import re

import numpy as np
import pytest
from builders import ROOT
from stages import StageResult, Workspace

STAGES = {"download": ("download", "prepare"), "predict": ("predict", "blend")}  # of make targets with several
MEMBERS = {"cnn": "slim"}  # in the guides -> in the small competition
SLOW = {  # not run here
    "make download train predict": "the small competition is made so",
    'make train predict SET="train.epochs=20"': "trains again; tests/pipelines/test_main_job.py does",
    'make train predict SET="train.epochs=3 members.cnn.image_size=48"': "trains again",
    "make train MEMBER=cnn DEBUG=1 DEBUG_ROWS=64": "tests/pipelines/test_debug.py does",
    "make issues-in-labels report": "needs cleanlab; tests/data/test_label_issues.py does",
}


def commands(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("make ")]


def run(workspace: Workspace, line: str) -> list[StageResult]:
    """Run a make command of a guide stage by stage, as the Makefile does."""
    words = re.findall(r"""(?:[^\s"]|"[^"]*")+""", line)[1:]
    values = dict(word.split("=", 1) for word in words if re.match("[A-Z_]+=", word))
    arguments = []
    if member := values.get("MEMBER"):
        arguments += ["--member", MEMBERS[member]]
    if fold := values.get("FOLD"):
        arguments += ["--fold", fold]
    results = []
    for target in [word for word in words if "=" not in word]:
        for stage in STAGES.get(target, (target,)):
            given = arguments if target in ("train", "grad-cam") else []
            given = [*given, "--allow-partial"] if "ALLOW_PARTIAL" in values else given
            results.append(workspace.run(stage.replace("-", "_"), *given, sets=values.get("SET", "").strip('"')))
    return results


@pytest.fixture(scope="module")
def workspace(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return finished.copy_to(tmp_path_factory.mktemp("guides"))


@pytest.mark.parametrize("page", ["tutorial.md", "report.md", "single_fold.md"])
def test_the_commands_of_a_guide_run_as_they_are_written(workspace: Workspace, page: str) -> None:
    lines = [line for line in dict.fromkeys(commands(page)) if line not in SLOW]
    assert lines
    for line in lines:
        for result in run(workspace, line):
            assert result.code == 0, f"{line}: {result.out}\n{result.err}"


def test_what_the_network_looks_at_is_computed_once_and_shown_in_the_report(workspace: Workspace) -> None:
    workspace.do("grad_cam")
    assert "grad-cam: current" in workspace.do("grad_cam")
    with np.load(workspace.work / "grad_cam.npz") as file:
        ids, classes, maps = file["ids"], file["classes"], file["maps"]
    assert maps.ndim == 3 and len(ids) == len(classes) == len(maps) > 0
    assert (
        np.isfinite(maps).all()
        and maps.min() >= 0
        and np.allclose(maps.max((1, 2))[maps.max((1, 2)) > 0], 1, atol=1e-3)
    )
    workspace.do("report")
    page = (workspace.work / "report.html").read_text(encoding="utf-8")
    (section,) = re.findall(r'<section id="gradcam">.*?</section>', page, re.DOTALL)
    assert section.count("<img ") == len(maps)
    assert "held-out loss" in page and "an earlier blend" not in page
    workspace.do("blend", sets="blend.methods=[best] decision.rules=[prior]")
    workspace.do("report", sets="blend.methods=[best] decision.rules=[prior]")
    assert "make grad-cam</code> was run for an earlier blend" in (workspace.work / "report.html").read_text(
        encoding="utf-8"
    )


def test_a_member_and_its_augmented_batch_are_in_the_folder_of_its_run(workspace: Workspace) -> None:
    sheets = list(workspace.work.glob("members/*/*/augmented.png"))
    assert len(sheets) == 2 and all(sheet.stat().st_size > 1000 for sheet in sheets)
