"""The page in a real browser: a photo is dropped, the answer appears, and nothing is asked of the network."""

from browser import Browser, open_page  # noqa: F401


def texts(page: Browser, selector: str) -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")


def test_a_dropped_photo_is_answered_and_a_dropped_text_refused(page: Browser, small_server, rows, tmp_path) -> None:
    own = f"http://127.0.0.1:{small_server.port}/"
    page.call("Page.navigate", url=own)
    page.wait_for("document.readyState === 'complete' && document.getElementById('model')?.textContent")
    assert texts(page, "#model") == ["small: the blend, 10 classes"]
    photo, text = tmp_path / "photo.png", tmp_path / "note.png"
    photo.write_bytes(rows[0][1])
    text.write_text("<script>document.title = 'hacked'</script>")
    page.drop("#drop", photo, photo)
    page.wait_for("document.querySelectorAll('.result:not([hidden])').length === 2")
    names = texts(page, "article:first-child .top td:first-child")
    assert len(names) == 5 and texts(page, ".class") == names[:1] * 2
    page.wait_for("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert len(texts(page, "article:first-child .similar li")) == 6 and page.problems() == []
    page.drop("#drop", text)
    page.wait_for("document.querySelector('.problem:not([hidden])') !== null")
    assert "not an image" in texts(page, ".problem:not([hidden])")[0] and page.evaluate("document.title") != "hacked"
    assert page.evaluate("document.querySelectorAll('.result:not([hidden])').length") == 2
    shown = "[...document.querySelectorAll('.photo')].map(e => [e.checkVisibility(), e.classList.contains('enlarged')])"
    page.wait_for(f"JSON.stringify({shown}) === '[[false,false],[true,true],[true,true]]'")  # no broken picture
    assert all(url.startswith((own, "blob:" + own.rstrip("/"))) for url in page.requested())
