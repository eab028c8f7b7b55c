"""The page needs no other files, shows texts of users unchanged, and works in a real browser by keyboard."""

import base64
import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, open_page  # noqa: F401
from builders import numbered

from competition.files.image_codec import encode
from competition.report import page as report
from competition.report.charts import Point, confusion_chart, legend, score_chart
from competition.report.classes import HonestRows
from competition.report.page import Charts, Figure, Head, Image, PointMap, Section, Sheet, SideBySide, Table, Text, Tile
from competition.report.row_map import map_chart
from competition.report.svg import round_values

EVIL = "<b>rose</b> & \"co\" 'x' {{ 99 * 991 }}"
HEAD = Head("t", "l", [Figure("honest", "0.9", "note", main=True)], [], "now")


def test_texts_of_users_are_shown_unchanged() -> None:
    rows = HonestRows(np.array([EVIL, "i"]), *np.zeros((2, 2), int), np.eye(2))
    charts = [  # all others are drawn like these
        score_chart([Point(EVIL, 0.5, 0.1, True, EVIL)], (0.4, 0.6), EVIL),
        legend([EVIL]),
        legend([EVIL], ["k0"], "dot"),
        map_chart(rows, np.eye(2), np.full(2, -1), [EVIL], {0: 0}),
        confusion_chart(np.array([[3, 1], [0, 2]]), [EVIL, "plain"]),
    ]
    blocks = [
        Text([EVIL]),
        Text([EVIL], warning=True),
        Table([EVIL], [[EVIL]], note=EVIL, folded=EVIL, title=EVIL),
        Charts(charts, EVIL, EVIL),
        Sheet([Tile("", False, [EVIL])], EVIL, EVIL),
        SideBySide(EVIL, [(EVIL, [Tile("data:,", False, [EVIL])])]),
        PointMap(charts[-1], charts[-1], [Tile("data:,", False, [EVIL])], EVIL),
        Image("data:,", EVIL),
    ]
    head = Head(EVIL, EVIL, [Figure(EVIL, EVIL, EVIL)], [EVIL], EVIL)
    page = report.render(head, [Section("key", EVIL, EVIL, blocks)])
    assert "<b>rose" not in page and "98109" not in page
    shown = " ".join([*re.findall(r'aria-label="([^"]*)"', page), *re.split("<[^>]*>", page)])
    assert html.unescape(shown).count(EVIL) >= 20


def test_an_axis_through_zero_says_0_and_not_minus_0() -> None:
    assert list(map(str, round_values((-0.05, 1.0), 5))) == ["0.0", "0.2", "0.4", "0.6000000000000001", "0.8", "1.0"]


def test_commands_between_backticks_and_beside_titles_are_completed() -> None:
    sections = [Section("key", "Title", "<file> · make tune", [Text(["make tune, `make train`"])])]
    completed = report.render(HEAD, sections, complete=lambda text: f"{text} PARAMS='a.yaml'")
    assert "make tune, <code>make train PARAMS=&#39;a.yaml&#39;</code>" in completed
    assert '<span class="sources">&lt;file&gt; · make tune PARAMS=&#39;a.yaml&#39;</span>' in completed


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with scores, a table of twelve rows, a large confusion matrix and pictures."""
    confusion = np.diag(np.full(102, 50))
    confusion[3, 90] = confusion[90, 3] = 20
    matrix = confusion_chart(confusion, [f"class {n:03}" for n in range(102)])
    points = [Point("cnn", 0.9, 0.01, True, "weight 1.00"), Point("blend, honest", 0.91, 0.01, True)]
    rows = [[f"m{n}", f"{n % 5 / 10:.2f}", f"{n + 1} min" if n % 2 else f"{50 + n} s"] for n in range(12)]
    table = Table(["member", "score", "time"], rows, title="Members")
    pictures = [base64.b64encode(encode(pixels, "png")).decode() for pixels in numbered(3, 8)]
    tiles = [Tile(f"data:image/png;base64,{data}", True, [f"picture {n}", "an id"]) for n, data in enumerate(pictures)]
    sections = [
        Section("blend", "Scores", "f", [Charts([score_chart(points, (0.88, 0.95), "m")]), table]),
        Section("classes", "Classes", "f", [Charts([matrix], zoom=True, name="Confusion")]),
        Section("errors", "Errors", "f", [Sheet(tiles)]),
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    head = replace(HEAD, footer=f"Made by `make report PARAMS=/{'long' * 30}.yaml`")
    path.write_text(report.render(head, sections), encoding="utf-8")
    return path


def test_a_page_requests_no_other_files_and_its_policy_allows_its_own_style_and_script_alone(file: Path) -> None:
    page = file.read_text("utf-8")
    assert re.fullmatch(r"(#.*|data:image/png;base64,.*|\n)*", "\n".join(re.findall(r' (?:src|href)="(.*?)"', page)))
    assert not re.search(r"url\((?!#)|@import|<(?:link|iframe|object)|http(?!-equiv)", page)
    (style,), (script,) = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("style", "script"))
    policy = report.content_security_policy(style, script)
    assert f'content="{policy}"' in page.replace("&#39;", "'") and "unsafe" not in policy
    assert not re.search(r"<[^>]*\s(style|on\w+)=", page)  # the policy would block them


def show(page: Browser, file: Path, width: int = 1280) -> None:
    page.events.clear()
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    page.call("Page.navigate", url="about:blank")
    page.call("Page.navigate", url=file.as_uri())
    page.wait_for("document.documentElement?.dataset?.ready === 'yes'")


KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39}


def press(page: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        given = {"text": "\r"} if (key, kind) == ("Enter", "keyDown") else {}
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key], **given)


def tab_to(page: Browser, condition: str) -> None:
    """Press Tab until the focused element `e` fulfils the condition."""
    for _ in range(400):
        press(page, "Tab")
        if page.evaluate(f"(e => {condition})(document.activeElement)"):
            return
    raise AssertionError(f"not reached by Tab: {condition}")


UNNAMED = """[...document.images].filter(i => i.src && !i.alt).length
  + [...document.querySelectorAll('svg')].filter(s => s.getAttribute('role') !== 'img' || !s.ariaLabel).length
  + [...document.querySelectorAll('button, input')].filter(b => !(b.ariaLabel || b.textContent.trim())).length
  + [...document.querySelectorAll('table')].filter(t => !t.caption.textContent.trim()).length
  + [...document.querySelectorAll('th')].filter(h => !h.scope || !h.textContent.trim()).length"""


def test_the_page_opens_without_an_error_or_a_request_and_everything_has_a_name_for_screen_readers(page, file) -> None:
    for width in (1280, 420):
        show(page, file, width)
        assert page.problems() == []
        assert [url for url in page.requested() if not url.startswith(("data:", "about:"))] == [file.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(UNNAMED) == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_links_pictures_and_tables_are_used_by_keyboard_and_a_print_has_all_sections(page, file) -> None:
    show(page, file)
    page.evaluate("document.querySelector('#errors > details').open = false")
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("document.querySelector('#errors .picture').getBoundingClientRect().height") > 50
    page.call("Emulation.setEmulatedMedia", media="")
    tab_to(page, "e.type === 'search'")
    page.call("Input.insertText", text="m1")
    page.wait_for("document.querySelector('#blend [role=status]').textContent === '3 of 12 rows'")
    tab_to(page, "e.textContent === 'time'")
    press(page, "Enter")
    press(page, "Enter")
    shown = "[...document.querySelector('#blend tbody').rows].filter(r => !r.hidden).map(r => r.cells[2].textContent)"
    assert page.evaluate(shown) == ["60 s", "2 min", "12 min"]  # ascending, of m10, m1 and m11
    page.evaluate("document.querySelector('nav a[href=\"#errors\"]').click()")
    page.wait_for("document.querySelector('#errors > details').open")
    tab_to(page, "e.matches('#errors .picture')")
    press(page, "Enter")
    assert page.evaluate("document.getElementById('viewer').open")
    press(page, "ArrowRight")
    assert page.evaluate("document.querySelector('#viewer img').alt") == "picture 1, an id"
    press(page, "Escape")
    page.wait_for("!document.getElementById('viewer').open")


def test_a_script_in_the_page_is_blocked(page, file, tmp_path) -> None:
    attacked = tmp_path / "attacked.html"
    attack = "<main><script>window.ran = 1</script><p style='color:red'>"
    attacked.write_text(file.read_text("utf-8").replace("<main>", attack))
    show(page, attacked)
    assert page.evaluate("window.ran") is None
    assert sum("Content Security Policy" in problem for problem in page.problems()) >= 2
