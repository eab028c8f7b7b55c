"""make report WATCH=1: the page follows what training writes, and reloads itself without losing the reader's place."""

import base64
import io
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from browser import NAMES, Browser, executable
from builders import ROOT
from PIL import Image as Pillow
from stages import Workspace, new_workspace

from competition.config.params_file import load_params
from competition.report.members import in_training
from competition.report.page import Head, Image, Section, Table, Text, render
from competition.workspace.runs import runs_of
from competition.workspace.workspace import Workspace as Library
from pipelines.terminal import watching
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job

LIVE = "location.reload"


class Watched:
    """`report --watch` in a process; its lines are read as they come."""

    def __init__(self, workspace: Workspace) -> None:
        self.page = workspace.work / "report.html"
        # A shell may have started pytest in the background, where Ctrl-C is ignored.
        restored = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        command = workspace.command("report", "--watch")
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1, text=True, preexec_fn=restored)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def wait_for(self, text: str, seconds: float = 120.0) -> str:
        """The page as soon as it holds the text."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            page = self.page.read_text("utf-8") if self.page.exists() else ""
            if text in page:
                return page
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.2)
        raise AssertionError(f"not in the page: {text}")

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit code and stderr."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, err


@pytest.fixture
def started() -> Iterator[list[Watched]]:
    watched: list[Watched] = []
    yield watched
    for one in watched:
        one.process.kill()


def test_the_page_follows_a_competition_from_before_its_download_to_the_curves_of_a_model_in_training(
    tmp_path: Path, started: list[Watched]
) -> None:
    workspace = new_workspace(tmp_path)
    started.append(watched := Watched(workspace))
    assert watched.line().endswith("reloads itself in the browser; Ctrl-C ends it\n")
    assert re.fullmatch(r"report: waiting for results: .*`make download PARAMS=[^`]+`.*\n", watched.line())
    for stage in ("download", "prepare", "resolve"):
        workspace.do(stage)
    page = watched.wait_for(f"<code>make train predict PARAMS={workspace.params}</code> makes one")
    assert LIVE in page and f"<code>make report PARAMS={workspace.params} WATCH=1</code>" in page
    stopped = workspace.stopped(signal.SIGTERM, "members/slim/*/fold0/checkpoints/*.json", "train")
    assert stopped.code == 143 and not any(workspace.work.glob("members/*/*/fold*/manifest.json"))
    page = watched.wait_for("slim fold 0, not finished: epoch ")
    assert '<section id="members">' in page and "No run yet" not in page
    assert watched.end() == (130, "goldfold: the report no longer follows the results\n")
    page = watched.page.read_text("utf-8")
    assert LIVE not in page and "Live:" not in page and "slim fold 0, not finished" in page


def test_a_page_is_written_again_only_when_results_changed(workspace: Workspace, monkeypatch) -> None:
    job = Job(Library(workspace.work, load_params(workspace.params)), Options(), workspace.submissions)
    history, written, changes = workspace.fold("slim", 1) / "history.csv", list[bool](), iter((False, True, False))

    def pause(seconds: float) -> None:
        """Between two looks at the results: change none, then one, then none; then press Ctrl-C."""
        match next(changes, None):
            case True:
                history.write_text(history.read_text())
            case None:
                raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        watching.watch(job, workspace.params, lambda _, reloads: written.append(reloads))
    assert written == [True, True, False]  # the last one, after Ctrl-C, does not reload itself


def test_only_curves_of_a_model_that_would_be_continued_are_shown(workspace: Workspace) -> None:
    library = Library(workspace.work, load_params(workspace.params))
    (run,) = runs_of(library, "slim")
    fold = workspace.fold("slim", 2)
    (fold / "checkpoints").mkdir()
    (fold / "manifest.json").rename(fold / "kept.json")
    digest = json.loads((fold / "kept.json").read_text())["digest"]
    for made_from, epochs in ((digest, [3]), ("another teacher's", [])):
        facts = {
            "made_from": made_from,
            "history": [{"epoch": n, "loss": 1 / n, "learning_rate": 0.1} for n in (1, 2, 3)],
        }
        (fold / "checkpoints" / "step-00000009.json").write_text(json.dumps(facts))
        assert [model.history["epoch"].max() for model in in_training(run, 3)] == epochs
    (fold / "kept.json").rename(fold / "manifest.json")  # a kill after the manifest leaves checkpoints
    (fold / "checkpoints" / "step-00000009.json").write_text(json.dumps({**facts, "made_from": digest}))
    assert in_training(run, 3) == []


def write_page(file: Path, rows: int, reloads: bool = True) -> None:
    """A page of five sections whose first becomes longer with the rows."""
    table = Table(["name", "score"], [[f"m{n}", f"0.{n}"] for n in range(rows)], title="Scores")
    buffer = io.BytesIO()
    Pillow.effect_noise((900, 900), 50).save(buffer, "PNG")  # its height is known when it is decoded
    sheet = Image(f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}", "a contact sheet")
    sections = [
        Section(
            f"s{n}", f"Section {n}", "f", [table, sheet] if n == 0 else [Text([f"paragraph {k}" for k in range(60)])]
        )
        for n in range(5)
    ]
    file.write_text(render(Head("t", "l", [], [], f"of {rows} rows"), sections, reloads), encoding="utf-8")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = executable()
    if program is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
    browser = Browser(program, tmp_path / "profile")
    browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    yield browser
    browser.close()


def test_a_reload_shows_the_new_page_at_the_same_place_with_the_same_sections_open(browser, tmp_path) -> None:
    file = tmp_path / "report.html"
    write_page(file, 8)
    browser.call("Page.navigate", url=file.as_uri())
    browser.wait_for("document.documentElement?.dataset?.ready === 'yes'")
    browser.evaluate("document.querySelectorAll('section > details').forEach((d, n) => { d.open = n !== 1; })")
    browser.evaluate("document.querySelector('#s0 th:nth-child(2) button').click()")
    browser.evaluate("document.getElementById('s3').scrollIntoView(); scrollBy(0, 123)")
    top = "Math.round(document.getElementById('s3').getBoundingClientRect().top)"
    read = browser.evaluate(top)
    assert read < -50
    write_page(file, 30)
    browser.wait_for(
        "document.readyState === 'complete' && document.getElementById('end').textContent === 'of 30 rows'"
    )
    browser.wait_for(f"Math.abs({top} - {read}) < 2", 4.0)
    opened = "[...document.querySelectorAll('section > details')].map(d => d.open)"
    assert browser.evaluate(opened) == [True, False, True, True, True]
    assert browser.evaluate("document.querySelector('#s0 th:nth-child(2)').ariaSort") == "descending"
    browser.evaluate("scrollTo(0, 40)")
    write_page(file, 31)
    browser.wait_for("document.getElementById('end')?.textContent === 'of 31 rows'")
    browser.wait_for("scrollY === 40", 4.0)
    assert browser.problems() == [] and {url.partition(":")[0] for url in browser.requested()} <= {
        "file",
        "about",
        "data",
    }


def test_a_page_that_is_used_or_not_watched_does_not_reload(browser, tmp_path) -> None:
    file = tmp_path / "report.html"
    fast = "const every = setInterval; window.setInterval = (action, milliseconds) => every(action, milliseconds / 5);"
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=f"{{{fast}}}")
    for reloads, use in ((True, "document.querySelector('input').value = 'm1'"), (False, "0")):
        write_page(file, 30, reloads)
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=file.as_uri())
        browser.wait_for("document.documentElement?.dataset?.ready === 'yes'")
        browser.evaluate(use)
        browser.evaluate("window.isSame = true")
        time.sleep(2)  # it would reload every second
        assert browser.evaluate("window.isSame") is True
