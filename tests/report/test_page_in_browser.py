"""The page in a real browser, wide and narrow: no error, no request, and everything is reached by keyboard."""

import base64
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import NAMES, Browser, executable
from markupsafe import Markup
from PIL import Image as Pillow

from competition.report.charts import Point, public_score_chart, score_chart
from competition.report.class_charts import confusion_chart
from competition.report.members import Line, epoch_chart
from competition.report.page import Charts, Figure, Head, PointMap, Section, Sheet, Table, Tile, render
from competition.report.row_map import MapPoints, map_chart, map_legend
from competition.report.tuning import ScoredTrial, history_chart, importance_chart, score_axis, slice_charts

WIDTHS = (1280, 420)


def picture(value: int) -> str:
    out = io.BytesIO()
    Pillow.new("RGB", (8, 8), (value, 0, 0)).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def crowded_charts() -> list[Markup]:
    """Charts whose ticks and names would cover each other if they were placed without care."""
    rates, names = np.geomspace(7.6e-4, 4.1e-3, 9), ("a long name", "another long name", "one", "two", "three", "four")
    trials = [
        ScoredTrial(n, 0.9 + n / 1000, {"rate": rate, "name": names[n % 6]}, n == 0) for n, rate in enumerate(rates)
    ]
    axis = score_axis(trials, "macro_f1", 1)
    points = [(f"{n}abc", 0.9 + n / 2000, 0.01, 0.9 + n % 2 / 999, 0.88, 0.92) for n in range(9)]
    # A tick at the very end of the axis.
    second = Point("second", 0.76, 0.006, True, "weight 0.12")
    ends = [second, Point("first, which has a long name", 0.8182, 0.005, True)]
    return [
        *score_chart(ends, (0.7879, 0.8319), "macro_f1"),
        *score_chart([Point("cnn", 0.7, 0.01, True), Point("blend", 0.9997, 0.0001, True)], (0.9992, 1.0), "macro_f1"),
        history_chart(trials, axis),
        *slice_charts(trials, ["rate", "name"], {"rate"}, axis),
        importance_chart({"a parameter with a very long name": 0.7, "rate": 0.3}),
        epoch_chart([Line("held-out loss", np.geomspace(1234, 1, 12)[:, None], 0)], "loss"),
        public_score_chart(points, "macro_f1"),
    ]


def small_map(tiles: list[Tile]) -> PointMap:
    """Three points of three classes at the corners of a triangle; the second has the last picture."""
    names, labels = [f"class {n}" for n in range(3)], np.arange(3)
    places, colours = np.array([[0.0, 0.0], [4.0, 0.0], [2.0, 3.0]]), {n: n for n in range(3)}
    points = MapPoints(places, np.array(["a", "b", "c"]), labels, np.array([0, 2, 2]), np.array([-1, 2, -1]))
    return PointMap(map_chart(points, names, colours), map_legend(names, colours), tiles, "a note")


def report_page() -> str:
    names = [f"class {n:03}" for n in range(102)]
    confusion = np.diag(np.full(102, 50))
    confusion[3, 90] = confusion[90, 3] = 20
    points = [Point("cnn", 0.9, 0.01, True, "weight 1.00"), Point("blend, honest", 0.91, 0.01, True)]
    long = ("more images of both, check their labels", "2 confused rows of this pair", "the honest score, 539 rows")
    steps = [["tell a and b apart", *long, "at most +0.0037"]]
    columns = ["member", "score", "time", *(f"a long name of column {n}" for n in range(6))]
    rows = [
        [f"m{n}", f"{n % 5 / 10:.2f}", f"{n + 1} min" if n % 2 else f"{50 + n} s", *["1,234.5"] * 6] for n in range(12)
    ]
    tables = [Table(columns, rows, title="Members"), Table(["step", "how", "basis", "score", "gain"], steps, 4)]
    tiles = [Tile(picture(n), True, [f"picture {n}", "an id"]) for n in range(3)]
    sections = [
        Section("blend", "Scores", "f", [Charts(score_chart(points, (0.88, 0.95), "m")), *tables]),
        Section("charts", "Charts", "f", [Charts(crowded_charts())]),
        Section("classes", "Classes", "f", [Charts([confusion_chart(confusion, names)], zoom=True, name="Confusion")]),
        Section("errors", "Errors", "f", [Sheet(tiles), small_map(tiles)]),
    ]
    return render(Head("t", "l", [Figure("honest", "0.9")], [], "now"), sections)


# The smallest contrast of a text of the page with the background behind it (WCAG 2.2, 1.4.3).
LEAST_CONTRAST = """(() => {
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => numbers(c).slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor; if (numbers(c)[3] !== 0) return c; } };
  return Math.min(...[...document.querySelectorAll('main *')].filter(e =>
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.tagName !== 'title').map(e => {
    const style = getComputedStyle(e), a = light(e.tagName === 'text' ? style.fill : style.color), b = light(behind(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
})()"""


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


def press(browser: Browser, key: str, code: int, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        given = {"text": text} if text and kind == "keyDown" else {}
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **given)


def tab_to(browser: Browser, condition: str, most: int = 120) -> None:
    """Press Tab until the focused element `e` fulfils the condition."""
    for _ in range(most):
        press(browser, "Tab", 9)
        if browser.evaluate(f"(e => {condition})(document.activeElement)"):
            return
    raise AssertionError(f"not reached by Tab: {condition}")


def column(browser: Browser, number: int) -> list[str]:
    cells = f"[...document.querySelector('#blend tbody').rows].filter(r => !r.hidden).map(r => r.cells[{number}].textContent)"
    return browser.evaluate(cells)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_opens_without_an_error_or_a_request_and_does_not_overflow(browser, file, width) -> None:
    page = opened(browser, file, width)
    assert page.problems() == []
    assert [url for url in page.requested() if not url.startswith(("data:", "about:"))] == [file.as_uri()]
    sections = page.evaluate("[...document.querySelectorAll('section')].map(s => s.id)")
    assert sections == ["blend", "charts", "classes", "errors"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = "[...document.querySelectorAll('#blend svg')].filter(s => s.getBoundingClientRect().width).length"
    assert page.evaluate(shown) == 1  # the chart of this width
    texts = "[...document.querySelectorAll('#blend svg text')].map(t => t.getBoundingClientRect().height)"
    assert min(filter(None, page.evaluate(texts))) > 9  # pixels: readable without zooming


def test_long_cells_break_so_that_a_table_fits_and_no_column_is_a_word_wide(browser, tmp_path) -> None:
    baseline, difference = (
        "trivial: classes drawn at random",
        "+0.0123 ± 0.0200 (other seeds ± 0.0123), noise (p = 0.60)",
    )
    row = [baseline, "0.9000 ± 0.0100", "0.9100 ± 0.0100", difference, "1,003", "902", "101"]
    columns = [
        "baseline",
        "its score",
        "the blend, honest",
        "honest difference",
        "rows changed",
        "corrected",
        "corrupted",
    ]
    section, file = Section("blend", "Gains", "f", [Table(columns, [row])]), tmp_path / "report.html"
    file.write_text(render(Head("t", "l", [], [], "now"), [section]), encoding="utf-8")
    page = opened(browser, file, 1280)
    assert page.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('.scroll'))")
    assert page.evaluate("document.querySelector('tbody th').offsetHeight") < 80  # at most three lines


def test_what_is_cut_off_says_so_and_scrolls_by_keyboard(browser, file) -> None:
    page = opened(browser, file, 420)
    page.wait_for("[...document.querySelectorAll('#blend .cue')].some(c => !c.hidden)")
    tab_to(page, "e.matches('#blend .scroll')")
    for _ in range(8):
        press(page, "ArrowRight", 39)
    page.wait_for("document.querySelector('#blend .scroll').scrollLeft > 0")
    page.evaluate("document.querySelector('#blend .scroll').scrollLeft = 9999")
    page.wait_for("document.querySelector('#blend .cue').hidden")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_two_texts_of_a_chart_cover_each_other_and_none_is_cut_off(browser, file, width) -> None:
    page = opened(browser, file, width)
    covered = """[...document.querySelectorAll('#blend svg, #charts svg')].flatMap(svg => {
      const box = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]).filter(t => t[1].width);
      const pairs = texts.flatMap(([a, p], n) => texts.slice(n + 1).filter(([b, q]) =>
        Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 4
      ).map(([b]) => [a, b]));
      return [...pairs, ...texts.filter(([, p]) => p.right > box.right + 2 || p.left < box.left - 2).map(([a]) => [a, 'cut off'])];
    })"""
    assert page.evaluate(covered) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_has_a_name_for_screen_readers_and_text_has_contrast(browser, file, width) -> None:
    page = opened(browser, file, width)
    unnamed = """[...document.images].filter(i => i.src && !i.alt).length
      + [...document.querySelectorAll('svg')].filter(s => s.getAttribute('role') !== 'img' || !s.ariaLabel).length
      + [...document.querySelectorAll('button, input')].filter(b => !(b.ariaLabel || b.textContent.trim())).length
      + [...document.querySelectorAll('table')].filter(t => !t.caption.textContent.trim()).length
      + [...document.querySelectorAll('th')].filter(h => !h.scope || !h.textContent.trim()).length"""
    assert page.evaluate(unnamed) == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert page.evaluate(LEAST_CONTRAST) >= 4.5  # WCAG AA


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_sort_and_filter_by_keyboard(browser, file, width) -> None:
    page = opened(browser, file, width)
    tab_to(page, "e.type === 'search'")
    page.call("Input.insertText", text="m1")
    page.wait_for("document.querySelector('#blend [role=status]').textContent === '3 of 12 rows'")
    assert column(page, 0) == ["m1", "m10", "m11"]
    page.evaluate("document.querySelector('#blend input').value = ''")
    page.evaluate("document.querySelector('#blend input').dispatchEvent(new Event('input'))")
    tab_to(page, "e.textContent === 'score'")
    press(page, "Enter", 13, "\r")
    assert column(page, 1) == sorted(column(page, 1), reverse=True)
    assert page.evaluate("document.querySelector('#blend th:nth-child(2)').ariaSort") == "descending"
    tab_to(page, "e.textContent === 'member'", 400)
    press(page, "Enter", 13, "\r")
    assert column(page, 0)[:3] == ["m0", "m1", "m10"]  # text: from a to z
    tab_to(page, "e.textContent === 'time'")
    press(page, "Enter", 13, "\r")
    press(page, "Enter", 13, "\r")
    assert column(page, 2)[:3] == ["50 s", "52 s", "54 s"] and column(page, 2)[-1] == "12 min"


def test_pictures_open_large_and_close_by_keyboard(browser, file) -> None:
    page = opened(browser, file, 1280)
    page.evaluate("document.querySelector('#errors > details').open = true")
    tab_to(page, "e.matches('#errors .picture')")
    press(page, "Enter", 13, "\r")
    assert page.evaluate("document.getElementById('viewer').open")
    press(page, "ArrowRight", 39)
    assert page.evaluate("document.querySelector('#viewer img').alt") == "picture 1, an id"
    press(page, "Escape", 27)
    page.wait_for("!document.getElementById('viewer').open")


def test_the_sidebar_stays_and_marks_the_section_that_is_read(browser, file) -> None:
    page = opened(browser, file, 1280)
    marked = "[...document.querySelectorAll('nav a[aria-current]')].map(a => a.hash)"
    assert page.evaluate(marked) == ["#blend"]
    page.evaluate("document.querySelector('#classes').scrollIntoView()")
    page.wait_for(f"{marked}[0] === '#classes'")
    assert page.evaluate("document.querySelector('nav').getBoundingClientRect().top") == 0


def test_the_first_three_sections_are_open_and_a_print_has_them_all_and_no_sidebar(browser, file) -> None:
    page = opened(browser, file, 1280)
    is_open = "[...document.querySelectorAll('section > details')].map(d => d.open)"
    assert page.evaluate(is_open) == [True, True, True, False]
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("document.querySelector('#errors .picture').getBoundingClientRect().height") > 50
    assert page.evaluate("document.querySelector('nav').getBoundingClientRect().height") == 0
    page.call("Emulation.setEmulatedMedia", media="")


def test_sections_fold_and_a_link_opens_its_section(browser, file) -> None:
    page = opened(browser, file, 1280)
    tab_to(page, "e.textContent === 'fold all sections'")
    press(page, " ", 32, " ")
    assert page.evaluate("document.querySelectorAll('section > details[open]').length") == 0
    page.evaluate("document.querySelector('nav a[href=\"#errors\"]').click()")
    page.wait_for("document.querySelector('#errors > details').open")


def test_the_confusion_matrix_zooms_and_its_names_can_be_read(browser, file) -> None:
    page = opened(browser, file, 1280)
    names = "[...document.querySelectorAll('#classes svg text')].filter(t => t.textContent.startsWith('class '))"
    assert page.evaluate(f"{names}.length") == 204  # rows and columns
    assert page.evaluate(f"Math.min(...{names}.map(t => parseFloat(t.getAttribute('font-size'))))") >= 9
    before = page.evaluate("document.querySelector('#classes svg').getBoundingClientRect().width")
    tab_to(page, "e.ariaLabel === 'zoom in'")
    press(page, "Enter", 13, "\r")
    assert page.evaluate("document.querySelector('#classes svg').getBoundingClientRect().width") > 1.3 * before


def test_a_cell_of_the_matrix_says_what_it_is_where_there_is_no_pointer_to_hover(browser, file) -> None:
    page = opened(browser, file, 420)
    cell = "document.querySelector('#classes g.wrong use')"
    page.evaluate(f"{cell}.scrollIntoView({{block: 'center', inline: 'center'}})")
    centre = f"(b => [b.x + b.width / 2, b.y + b.height / 2])({cell}.getBoundingClientRect())"
    status = "document.querySelector('#classes [role=status]').textContent"
    for _ in range(50):  # the page may still be laid out after scrolling, so that a press misses the cell
        x, y = page.evaluate(centre)
        for kind in ("mousePressed", "mouseReleased"):
            page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        if page.evaluate(status) != "click a cell to read it":
            break
        time.sleep(0.1)
    assert re.fullmatch(r"class \d+ predicted as class \d+: 20 of 70 rows wrong", page.evaluate(status))


def test_a_tap_near_a_point_of_the_map_says_what_it_is_and_shows_its_picture(browser, file) -> None:
    page = opened(browser, file, 420)
    page.evaluate("document.querySelector('#errors > details').open = true")
    click = """((n, off) => { const svg = document.querySelector('.map svg');
      const b = [...svg.querySelectorAll('use')].find(u => u.textContent.startsWith(`class ${n}`)).getBoundingClientRect();
      const [clientX, clientY] = [b.x + b.width / 2 + off, b.y + b.height / 2 + off];
      svg.dispatchEvent(new MouseEvent('click', {clientX, clientY})); })"""
    spot, image = "document.querySelector('.map .spot')", "document.querySelector('.map .spot img')"
    page.evaluate(f"{click}(1, 6)")
    assert page.evaluate(f"{spot}.textContent") == "class 1 predicted as class 2 · b"
    assert page.evaluate(f"{image}.alt") == "picture 2, an id"
    page.wait_for(f"{image}.getBoundingClientRect().height > 50")
    page.evaluate(f"{click}(0, 40)")  # too far from any point
    assert page.evaluate(f"{spot}.textContent") == "class 1 predicted as class 2 · b"
    page.evaluate(f"{click}(0, 0)")
    assert page.evaluate(f"[{spot}.textContent, {image}.hidden]") == ["class 0, predicted right · a", True]


def test_a_script_in_the_page_is_blocked(browser, file, tmp_path) -> None:
    attacked = tmp_path / "attacked.html"
    attack = "<main><script>window.ran = 1</script><p style='color:red'>"
    attacked.write_text(file.read_text("utf-8").replace("<main>", attack))
    page = opened(browser, attacked, 1280)
    assert page.evaluate("window.ran") is None
    assert sum("Content Security Policy" in problem for problem in page.problems()) >= 2
