"""The page in a real browser: a photo is dropped, the answer appears, and nothing is asked of the network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import NAMES, Browser, executable
from servers import Server


@pytest.fixture
def page(small_server: Server, tmp_path: Path) -> Iterator[Browser]:
    program = executable()
    if program is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
    browser = Browser(program, tmp_path / "profile")
    try:
        browser.call("Page.navigate", url=f"http://127.0.0.1:{small_server.port}/")
        browser.wait_for("document.readyState === 'complete' && document.getElementById('model')?.textContent")
        yield browser
    finally:
        browser.close()


def texts(page: Browser, selector: str) -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")


def test_a_dropped_photo_is_answered_and_a_dropped_text_refused(page: Browser, small_server, rows, tmp_path) -> None:
    assert texts(page, "#model") == ["small: the blend, 10 classes"]
    photo, text = tmp_path / "photo.png", tmp_path / "note.png"
    photo.write_bytes(rows[0][1])
    text.write_text("<script>document.title = 'hacked'</script>")
    page.drop("#drop", photo, photo)
    page.wait_for("document.querySelectorAll('.result:not([hidden])').length === 2")
    first = "article:first-child "
    names, probabilities = texts(page, f"{first} .top td:first-child"), texts(page, f"{first} .top td:nth-child(2)")
    assert len(names) == 5 and texts(page, ".class") == names[:1] * 2
    shares = [float(value.removesuffix(" %")) for value in probabilities]
    assert shares == sorted(shares, reverse=True) and 90 < sum(shares) < 100.5
    page.wait_for("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert len(texts(page, f"{first} .similar li")) == 6
    assert page.problems() == []
    page.drop("#drop", text)
    page.wait_for("document.querySelector('.problem:not([hidden])') !== null")
    assert "not an image" in texts(page, ".problem:not([hidden])")[0] and page.evaluate("document.title") != "hacked"
    assert page.evaluate("document.querySelectorAll('.result:not([hidden])').length") == 2
    shown = "[...document.querySelectorAll('.photo')].map(e => [e.checkVisibility(), e.classList.contains('enlarged')])"
    page.wait_for(f"JSON.stringify({shown}) === '[[false,false],[true,true],[true,true]]'")  # no broken picture
    own = f"http://127.0.0.1:{small_server.port}/"
    assert all(url.startswith((own, "blob:" + own.rstrip("/"))) for url in page.requested())
