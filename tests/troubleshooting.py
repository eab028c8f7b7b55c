"""Writes docs/troubleshooting.md from the error sentences in the source: `python tests/troubleshooting.py`."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from competition.kaggle.explain import KNOWN  # noqa: E402

PAGE = ROOT / "docs" / "troubleshooting.md"
ERRORS = {"UserError", "KaggleError", "ArchiveRefusal", "KernelFailed", "UnknownOutcome", "InvalidParameter"}
FEWEST_WORDS = 3  # a sentence of fewer words of its own passes on another one, except
SHORT = {"unknown key<did_you_mean>"}
UNEXPECTED = "Unexpected error"  # ends every error that nobody expected; the table at the top says what to do
RETURNED = "failures.py"  # its functions return the sentences of unexpected errors
SECTIONS = {  # source -> heading, page with more about it
    "competition/config": ("Parameters, SET and plugins", "plugins.md"),
    "competition/data/convert": ("make convert", "convert.md"),
    "competition/data": ("Data: tables, images, records, folds", "own_images.md"),
    "competition/training": ("Training", "single_fold.md"),
    "competition/tuning": ("make tune", "tuning.md"),
    "competition/preflight": ("make preflight and make plan", "preflight.md"),
    "competition/artifacts": ("Results on disk", "runs.md"),
    "competition/ensemble": ("Predictions, views, blend, decision rule", "external_predictions.md"),
    "competition/submission": ("Submission files", "kaggle_and_tpu.md"),
    "competition/kaggle": ("Kaggle: download, submit, credentials", "kaggle_and_tpu.md"),
    "competition/kernels": ("Kernels", "kaggle_and_tpu.md"),
    "competition/storage": ("gs:// and other locations", "kaggle_and_tpu.md"),
    "competition/cluster": ("Several machines", "cluster.md"),
    "competition/serving": ("Export and server", "serving.md"),
    "competition/report": ("Report", "report.md"),
    "pipelines": ("Verbs", "tutorial.md"),
    "goldfold.py": ("The Python interface", "python_api.md"),
}
HEAD = """# Troubleshooting

    make doctor
    make doctor EXPLAIN="No TPU platform found"

The first command checks Python, disk, Kaggle, data and devices, each line as soon as it is known, with a fix for each error. The second
looks a pasted error up on this page: one of goldfold, complete or cut off, or one of another program.

| what you see | what to do |
|---|---|
| a sentence that starts with `goldfold:` | it says what was found, what was expected and how to fix it; all of them are listed below |
| `Unexpected error; DEBUG=1 shows the traceback.` | this is a bug: run the command again with `DEBUG=1` and report the traceback |
| a command was killed or the machine restarted | type it again: it continues from the last checkpoint |
| everything is trained again | `make runs` shows what changed: parameters, data or code |
| training is slow | `make bench` shows whether the device waits for data |
| it does not fit into memory | lower `train.batch`, raise `train.accumulate`; for a TPU, `make preflight` says what fits before you pay |
| the public score is far from the honest one | `make submissions` shows what chance explains; [the report](report.md) shows the rest |

Exit codes are in [reliability.md](reliability.md). This page is written by `python tests/troubleshooting.py` from the source; a test
fails if it is out of date. In the messages, the words in <> are values.

## Errors of other programs

| error | cause | what to do |
|---|---|---|
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    rows = [f"| {cell(plain(pattern))} | {cell(cause)} | {cell(fix)} |" for pattern, cause, fix in KNOWN]
    text = HEAD + "\n".join(rows) + "\n"
    for prefix, (title, guide) in SECTIONS.items():
        sentences = [sentence for file in files_of(prefix) for sentence in sentences_in(file)]
        if sentences:
            text += (
                f"\n## {title}\n\nMore: [{guide.removesuffix('.md')}]({guide})\n\n```text\n"
                + "\n".join(dict.fromkeys(sentences))
                + "\n```\n"
            )
    return text


def files_of(prefix: str) -> list[Path]:
    """Source files below a prefix that no longer prefix claims."""
    files = [ROOT / prefix] if prefix.endswith(".py") else sorted((ROOT / prefix).rglob("*.py"))
    longer = [f"{other}/" for other in SECTIONS if other.startswith(f"{prefix}/")]
    return [file for file in files if not file.relative_to(ROOT).as_posix().startswith(tuple(longer) or "\0")]


def sentences_in(file: Path) -> Iterator[str]:
    """The sentences of all errors that a file makes, in their order, with <name> for each value."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    error_arguments = [list(node.args) for node in nodes if isinstance(node, ast.Call) and name_called(node) in ERRORS]
    if file.name == RETURNED:
        error_arguments += [[node.value] for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    for expressions in sorted(
        error_arguments, key=lambda parts: (parts[0].lineno, parts[0].col_offset) if parts else (0, 0)
    ):
        texts = [text for expression in expressions if (text := template(expression))]
        longest = max(texts, key=len, default="")
        words = sum(word.isalpha() for word in longest.replace("<", " <").split())
        if (words >= FEWEST_WORDS or longest in SHORT) and UNEXPECTED not in longest:
            yield longest


def name_called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def template(node: ast.expr) -> str:
    """The text of a string or an f-string, its values as <name>; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return " ".join(node.value.split())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return " ".join((template(node.left) + template(node.right)).split())
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = [part.value if isinstance(part, ast.Constant) else f"<{name_of(part)}>" for part in node.values]
    return " ".join("".join(map(str, parts)).split())


def name_of(value: ast.AST) -> str:
    """The last name in an expression: {len(rows):,} -> rows."""
    names = [node.attr if isinstance(node, ast.Attribute) else node.id for node in ast.walk(value)
             if isinstance(node, ast.Attribute | ast.Name)]  # fmt: skip
    plain = [name for name in names if name not in {"len", "str", "display_path", "first_few", "sum", "sorted", "join"}]
    return (plain or ["value"])[0].strip("_")


def plain(pattern: str) -> str:
    """A regular expression as people read it."""
    text = re.sub(r"\\w\+|\.\*|\[\^?[^]]*\][+*]?", "...", pattern)
    return re.sub(r"\\(.)", r"\1", re.sub(r"\(\?:|\\b|[()?]", "", text)).replace("|", " or ")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    main()
