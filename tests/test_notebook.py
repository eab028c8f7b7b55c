"""docs/notebooks/goldfold.ipynb runs from its first cell to its last, and says where it runs."""

import json
import os
import subprocess
import sys

import pytest
from builders import ROOT
from preloaded import run_preloaded

NOTEBOOK = json.loads((ROOT / "docs" / "notebooks" / "goldfold.ipynb").read_text(encoding="utf-8"))
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
# Runs the cells of the last argument as a kernel does: one after the other, in one namespace; shows the value of a last line.
KERNEL = """
import ast, json, sys
scope = {"__name__": "__main__"}
for number, source in enumerate(json.loads(sys.argv[-1])):
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {number}", "exec"), scope)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), scope)
        print(value._repr_html_() if type(value).__name__ == "Page" else value, flush=True)
"""


# The verbs are forked, but `grade`: TensorFlow has then predicted in this process, and its threads would not be in a fork.
FORK = f"""
import subprocess, sys
sys.path.append({str(ROOT / "tests")!r})
from preloaded import ForkedPython, NewProcess
subprocess.Popen = lambda command, **options: (NewProcess if "grade" in command else ForkedPython)(command, **options)
"""


def variables() -> dict[str, str]:
    """The variables of this process without those of Kaggle and Colab; the project is on the path."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("KAGGLE_", "COLAB_"))}
    return {**own, "PYTHONPATH": str(ROOT)}


def run(cells: list[str], folder, **environment: str) -> subprocess.CompletedProcess[str]:
    command, variables_of_run = [sys.executable, "-c", KERNEL, json.dumps(cells)], {**variables(), **environment}
    return subprocess.run(command, cwd=folder, env=variables_of_run, capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_cell_runs_in_order_and_the_digits_are_recognised(tmp_path) -> None:
    code, out, err = run_preloaded("", [json.dumps(CELLS)], tmp_path, variables(), FORK + KERNEL)
    assert code == 0, f"{out}\n{err}"
    assert "This is another machine" in out and "all packages are here" in out
    private, baseline = [line for line in out.splitlines() if line.startswith("grade: ") and "private 0." in line]
    assert "trivial baseline" in baseline
    assert float(private.split("private ")[1].split()[0]) > 0.5  # chance is 0.1
    assert "<iframe srcdoc=" in out and "&lt;h1" in out, "the report is not shown"
    assert "ok    data:" in out, "doctor did not check the machine"
    assert "truth" in out.partition("</iframe>")[2]
    assert (tmp_path / "goldfold-notebook" / "submission.csv").read_text().startswith("id,label\n")


@pytest.mark.parametrize(
    ("variable", "says"), [("KAGGLE_KERNEL_RUN_TYPE", "This is Kaggle"), ("COLAB_RELEASE_TAG", "This is Colab")]
)
def test_it_has_no_outputs_and_says_what_differs_on_kaggle_and_on_colab(tmp_path, variable, says) -> None:
    assert not any(cell.get("outputs") for cell in NOTEBOOK["cells"])
    ran = run(CELLS[:1], tmp_path, **{variable: "x"})
    assert ran.returncode == 0 and says in ran.stdout and len(ran.stdout.splitlines()) >= 3


def test_without_the_project_it_says_what_to_do(tmp_path) -> None:
    # An editable installation has put the project on the path.
    not_installed = f"import sys; sys.path[:] = [folder for folder in sys.path if folder != {str(ROOT)!r}]"
    ran = run([not_installed, *CELLS[:2]], tmp_path, PYTHONPATH="")
    assert ran.returncode != 0 and "attach it as a dataset, or set `repository` above" in ran.stderr
