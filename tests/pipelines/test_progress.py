"""Progress: a bar on a terminal, plain lines elsewhere."""

import re

import pytest

from pipelines.terminal import progress
from pipelines.terminal.progress import Bar

COLOUR = re.compile(r"\x1b\[(3|4|9)\d")


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)


def test_without_a_terminal_a_line_names_position_time_and_text(capsys) -> None:
    with Bar(8, "cnn", "steps") as bar:
        bar.text = "fold 1, loss 0.300"
        bar.update_to(2)
        line = bar.line(bar.started + 10)
    assert line == "cnn: 2 of 8 steps (25%), 10 s, 30 s left, 0.2/s; fold 1, loss 0.300"
    printed = capsys.readouterr().err
    assert printed.startswith("cnn: 2 of 8 steps (25%)") and "\x1b" not in printed


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_a_bar_in_colours_unless_no_color_is_set(capsys, monkeypatch, no_color) -> None:
    monkeypatch.setattr(Bar, "is_terminal", True)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    with Bar(8, "[b]cnn", "steps") as bar:
        bar.update_to(2)
        assert Bar.shown == {bar}
        bar.clear()  # as Job.echo does
        assert not bar._progress.live.is_started
        print("a message")
        bar.update_to(5)
    output = capsys.readouterr()
    assert re.search(r"\[b\]cnn .*2/8\S* steps .*5/8\S* steps", output.err, re.DOTALL) and output.out == "a message\n"
    assert bool(COLOUR.search(output.err)) == (not no_color)
    assert "\x1b[?25l" not in output.err  # a killed process could not show the cursor again


def test_an_unknown_total_is_counted(capsys) -> None:
    with Bar(None, "reading images") as bar:
        bar.update(3)
        assert bar.line(bar.started + 2) == "reading images: 3, 2 s, 1.5/s"
