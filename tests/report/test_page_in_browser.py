"""The page in a real browser, wide and narrow: no error, no request, and everything is reached by keyboard."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import NAMES, Browser, executable
from PIL import Image as Pillow

from competition.report.charts import Point, score_chart
from competition.report.class_charts import confusion_chart
from competition.report.page import Charts, Figure, Head, Section, Sheet, Table, Tile, render


def picture(value: int) -> str:
    out = io.BytesIO()
    Pillow.new("RGB", (8, 8), (value, 0, 0)).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def report_page() -> str:
    names = [f"class {n:03}" for n in range(102)]
    confusion = np.diag(np.full(102, 50))
    confusion[3, 90] = confusion[90, 3] = 20
    points = [Point("cnn", 0.9, 0.01, True, "weight 1.00"), Point("blend, honest", 0.91, 0.01, True)]
    columns = ["member", "score", "time"]
    rows = [[f"m{n}", f"{n % 5 / 10:.2f}", f"{n + 1} min" if n % 2 else f"{50 + n} s"] for n in range(12)]
    tiles = [Tile(picture(n), True, [f"picture {n}", "an id"]) for n in range(3)]
    scores = [Charts(score_chart(points, (0.88, 0.95), "m")), Table(columns, rows, title="Members")]
    sections = [
        Section("blend", "Scores", "f", scores),
        Section("classes", "Classes", "f", [Charts([confusion_chart(confusion, names)], zoom=True, name="Confusion")]),
        Section("errors", "Errors", "f", [Sheet(tiles)]),
    ]
    return render(Head("t", "l", [Figure("honest", "0.9")], [], "now"), sections)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = executable()
    if program is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_page(), encoding="utf-8")
    return path


def opened(browser: Browser, file: Path, width: int) -> Browser:
    browser.events.clear()
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=file.as_uri())
    browser.wait_for("document.documentElement?.dataset?.ready === 'yes'")
    return browser


KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39}


def press(browser: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        given = {"text": "\r"} if (key, kind) == ("Enter", "keyDown") else {}
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key], **given)


def tab_to(browser: Browser, condition: str, most: int = 120) -> None:
    """Press Tab until the focused element `e` fulfils the condition."""
    for _ in range(most):
        press(browser, "Tab")
        if browser.evaluate(f"(e => {condition})(document.activeElement)"):
            return
    raise AssertionError(f"not reached by Tab: {condition}")


def column(browser: Browser, number: int) -> list[str]:
    cells = f"[...document.querySelector('#blend tbody').rows].filter(r => !r.hidden).map(r => r.cells[{number}].textContent)"
    return browser.evaluate(cells)


UNNAMED = """[...document.images].filter(i => i.src && !i.alt).length
  + [...document.querySelectorAll('svg')].filter(s => s.getAttribute('role') !== 'img' || !s.ariaLabel).length
  + [...document.querySelectorAll('button, input')].filter(b => !(b.ariaLabel || b.textContent.trim())).length
  + [...document.querySelectorAll('table')].filter(t => !t.caption.textContent.trim()).length
  + [...document.querySelectorAll('th')].filter(h => !h.scope || !h.textContent.trim()).length"""


@pytest.mark.parametrize("width", [1280, 420])
def test_the_page_opens_without_an_error_or_a_request_and_everything_has_a_name_for_screen_readers(
    browser, file, width
):
    page = opened(browser, file, width)
    assert page.problems() == []
    assert [url for url in page.requested() if not url.startswith(("data:", "about:"))] == [file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(UNNAMED) == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_a_print_has_all_sections_a_link_opens_one_and_its_pictures_open_large_by_keyboard(browser, file) -> None:
    page = opened(browser, file, 1280)
    page.evaluate("document.querySelector('#errors > details').open = false")
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("document.querySelector('#errors .picture').getBoundingClientRect().height") > 50
    page.call("Emulation.setEmulatedMedia", media="")
    page.evaluate("document.querySelector('nav a[href=\"#errors\"]').click()")
    page.wait_for("document.querySelector('#errors > details').open")
    tab_to(page, "e.matches('#errors .picture')")
    press(page, "Enter")
    assert page.evaluate("document.getElementById('viewer').open")
    press(page, "ArrowRight")
    assert page.evaluate("document.querySelector('#viewer img').alt") == "picture 1, an id"
    press(page, "Escape")
    page.wait_for("!document.getElementById('viewer').open")


def test_tables_sort_and_filter_by_keyboard(browser, file) -> None:
    page = opened(browser, file, 1280)
    tab_to(page, "e.type === 'search'")
    page.call("Input.insertText", text="m1")
    page.wait_for("document.querySelector('#blend [role=status]').textContent === '3 of 12 rows'")
    assert column(page, 0) == ["m1", "m10", "m11"]
    page.evaluate("document.querySelector('#blend input').value = ''")
    page.evaluate("document.querySelector('#blend input').dispatchEvent(new Event('input'))")
    tab_to(page, "e.textContent === 'score'")
    press(page, "Enter")
    assert column(page, 1) == sorted(column(page, 1), reverse=True)
    assert page.evaluate("document.querySelector('#blend th:nth-child(2)').ariaSort") == "descending"
    tab_to(page, "e.textContent === 'time'", 400)
    press(page, "Enter")
    press(page, "Enter")
    assert column(page, 2)[:3] == ["50 s", "52 s", "54 s"] and column(page, 2)[-1] == "12 min"


def test_a_script_in_the_page_is_blocked(browser, file, tmp_path) -> None:
    attacked = tmp_path / "attacked.html"
    attack = "<main><script>window.ran = 1</script><p style='color:red'>"
    attacked.write_text(file.read_text("utf-8").replace("<main>", attack))
    page = opened(browser, attacked, 1280)
    assert page.evaluate("window.ran") is None
    assert sum("Content Security Policy" in problem for problem in page.problems()) >= 2
