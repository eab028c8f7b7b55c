"""What a terminal shows, and what a file or a program gets."""

import io
import re
import subprocess
from contextlib import redirect_stdout

import pytest
from builders import ROOT
from stages import Workspace
from terminals import on_terminal

from pipelines.terminal.output import print_line, table_lines

STYLE = re.compile(r"\033\[\d+m")


def test_columns_are_aligned_and_nothing_is_wrapped_or_styled_without_a_terminal() -> None:
    long_name = "[bold]a name[/] " + "x" * 200
    assert table_lines(["member", "step"], [["slim", "train"], [long_name, "predict"], ["蘭", "train"]]) == [
        "  " + "member".ljust(len(long_name)) + "  step",
        "  " + "slim".ljust(len(long_name)) + "  train",
        "  " + long_name + "  predict",
        "  " + "蘭".ljust(len(long_name) - 1) + "  train",  # two cells wide
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def columns_40(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


@pytest.mark.parametrize(
    "value",
    [
        "0.91 ± 0.02", "p = 0.28", "p < 0.001", "shift_left 0.20", "macro_f1 0.91", "trial 2", "gain +0.0072 ± 0.0066",
        "from 0.81 to 0.93", "3 of 5", "95 %", "12 s", "1.5 GB", "450 test rows", "a gain", "`make report WATCH=1`",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("columns_40")
def test_a_value_is_not_torn_from_its_name_error_or_unit(value: str) -> None:
    with redirect_stdout(Terminal()) as terminal:
        for position in range(1, 38):
            print_line(f"{'x' * position} a {value}, which ends in the next line")
    lines = terminal.getvalue().splitlines()
    assert sum(value in line for line in lines) == 37 and max(map(len, lines)) <= 40


@pytest.mark.usefixtures("columns_40")
def test_nor_in_a_table() -> None:
    gain = "over the best member: +0.0072 ± 0.0066, noise (p = 0.28)"
    with redirect_stdout(Terminal()):
        lines = table_lines(["member", "gain"], [["x" * width, gain] for width in (1, 4, 7, 9)])
    assert sum("+0.0072 ± 0.0066" in line for line in lines) == sum("(p = 0.28)" in line for line in lines) == 4


@pytest.mark.usefixtures("columns_40")
def test_what_broken_cells_leave_goes_to_the_column_that_needs_it() -> None:
    views = "shift_up 0.60, identity 0.20, flip 0.20"
    with redirect_stdout(Terminal()):
        assert table_lines(["views", "excluded"], [[views, "harmful: shift_down"]])[2:] == [
            "  shift_up 0.60,              harmful:",
            "  identity 0.20, flip 0.20    shift_down",
        ]


@pytest.mark.usefixtures("columns_40")
def test_a_table_of_too_long_words_becomes_sentences_without_empty_cells() -> None:
    columns, row = ["run", "difference", "folds", "honest"], ["cnn@72170d2b *", "-", "5/5", "0.9176 ± 0.0096"]
    with redirect_stdout(Terminal()):
        assert table_lines(columns, [row, ["small@c27783c0", "epochs: 3", "", "-"]]) == [
            "  cnn@72170d2b *: folds 5/5; honest 0.9176 ± 0.0096",
            "  small@c27783c0: difference epochs: 3",
        ]


@pytest.mark.parametrize("verb", ["blend", "list-blends"])
def test_no_line_is_longer_than_the_terminal_and_no_word_is_broken(finished: Workspace, verb: str) -> None:
    columns = 80
    command = finished.command(verb, "--verbose")
    lines = STYLE.sub("", on_terminal(command, columns)).splitlines()
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # A path is one word, and a table too wide for the terminal becomes sentences, with signs of their own.
    assert all(len(line) <= columns for line in lines if len(line.split()) > 1)
    shown = {word.rstrip(",:;") for line in lines for word in line.split() if "─" not in word}
    assert shown <= {word.rstrip(",:;") for word in text.split()}


def test_a_blend_ends_in_one_table_and_a_conclusion_in_bold(finished: Workspace) -> None:
    shown = on_terminal(finished.command("blend"), 100)
    head, conclusion = re.findall(r"\033\[1m(.+?)\033\[0m", shown, re.DOTALL)
    assert head.split()[:3] == ["member", "macro_f1", "weight"]
    assert re.search(r"\033\[(?:32ma gain|31ma loss|2mnoise)\033\[0m", shown)
    assert conclusion.startswith("honest macro_f1 ") and "the trivial baseline scores" in conclusion
    assert len(STYLE.sub("", shown).splitlines()) < 20
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\033" not in on_terminal(finished.command("blend"), 100, **environment)
