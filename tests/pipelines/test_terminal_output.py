"""What a terminal shows, and what a file or a program gets."""

import re

import pytest
from stages import Workspace
from terminals import on_terminal

from pipelines.terminal import progress

STYLE, COLOUR = re.compile(r"\033\[\d+m"), re.compile(r"\x1b\[(3|4|9)\d")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_bar_is_drawn_in_colours_unless_no_color_is_set(capsys, monkeypatch, no_color) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress.Bar, "is_terminal", True)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    with progress.Bar(8, "[b]cnn", "steps") as bar:
        bar.update_to(2)
        bar.clear()  # as Job.echo does
        print("a message")
        bar.update_to(5)
    output = capsys.readouterr()
    assert re.search(r"\[b\]cnn .*2/8\S* steps .*5/8\S* steps", output.err, re.DOTALL) and output.out == "a message\n"
    assert bool(COLOUR.search(output.err)) == (not no_color)
    assert "\x1b[?25l" not in output.err  # a killed process could not show the cursor again


def test_no_line_is_longer_than_the_terminal_no_word_is_broken_and_no_color_is_kept_to(finished: Workspace) -> None:
    columns, command = 80, finished.command("blend", "--verbose")
    shown = on_terminal(command, columns)
    lines = STYLE.sub("", shown).splitlines()
    text = on_terminal(command, 2_000, NO_COLOR="1")
    # A path is one word, and a table too wide for the terminal becomes sentences, with signs of their own.
    assert all(len(line) <= columns for line in lines if len(line.split()) > 1)
    words = {word.rstrip(",:;") for line in lines for word in line.split() if "─" not in word}
    assert words <= {word.rstrip(",:;") for word in text.split()}
    assert "\033" in shown and "\033" not in text
