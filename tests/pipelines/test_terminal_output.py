"""What a terminal shows, and what a file or a program gets."""

import os
import pty
import re
import subprocess

import pytest
from builders import ROOT
from stages import Workspace

from pipelines.terminal.output import table_lines

STYLE = re.compile(r"\033\[\d+m")


def on_terminal(command: list[str], columns: int, **environment: str) -> str:
    """The output of a command whose stdout is a terminal."""
    reading, writing = pty.openpty()
    variables = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **environment}
    process = subprocess.Popen(command, cwd=ROOT, stdout=writing, env=variables)
    os.close(writing)
    parts = []
    try:
        while part := os.read(reading, 65536):
            parts.append(part)
    except OSError:  # the process has ended
        pass
    os.close(reading)
    assert process.wait() == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_columns_are_aligned_and_nothing_is_wrapped_or_styled_without_a_terminal() -> None:
    long_name = "[bold]a name[/] " + "x" * 200
    assert table_lines(["member", "step"], [["slim", "train"], [long_name, "predict"], ["蘭", "train"]]) == [
        "  " + "member".ljust(len(long_name)) + "  step",
        "  " + "slim".ljust(len(long_name)) + "  train",
        "  " + long_name + "  predict",
        "  " + "蘭".ljust(len(long_name) - 1) + "  train",  # two cells wide
    ]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("verb", ["blend", "list-blends"])
def test_no_line_is_longer_than_the_terminal_and_no_word_is_broken(
    finished: Workspace, verb: str, columns: int
) -> None:
    command = finished.command(verb, "--verbose")
    lines = STYLE.sub("", on_terminal(command, columns)).splitlines()
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # A path is one word, and a table too wide for the terminal becomes sentences, with commas and colons of their own.
    assert all(len(line) <= columns for line in lines if len(line.split()) > 1)
    shown = {word.rstrip(",:") for line in lines for word in line.split() if "─" not in word}
    assert shown <= {word.rstrip(",:") for word in text.split()}


def test_a_blend_ends_in_one_table_and_a_conclusion_in_bold(finished: Workspace) -> None:
    shown = on_terminal(finished.command("blend"), 100)
    head, conclusion = re.findall(r"\033\[1m(.+?)\033\[0m", shown, re.DOTALL)
    assert head.split()[:3] == ["member", "macro_f1", "weight"]
    assert conclusion.startswith("honest macro_f1 ") and "the trivial baseline scores" in conclusion
    assert len(STYLE.sub("", shown).splitlines()) < 20
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\033" not in on_terminal(finished.command("blend"), 100, **environment)
