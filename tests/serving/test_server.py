"""The server answers like TensorFlow Serving, and nothing that a client sends stops it."""

import base64
import io
import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import Browser, open_page  # noqa: F401
from builders import ROOT
from data_fixtures import encode_image
from PIL import Image
from servers import Server, start
from stages import Workspace

from competition.config.errors import UserError
from competition.ensemble.stored_predictions import load_scores
from competition.serving.bundle import load_bundle
from pipelines.serving.serve import outdated_lines

PREDICT = "/v1/models/goldfold:predict"
POST = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n".encode() + b"%s"


def instances(images: list[bytes]) -> dict[str, object]:
    return {"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}


def encoded(kind: str, sides: tuple[int, int] = (40, 30), **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (*sides, 3)).astype(np.uint8)
    return encode_image(Image.fromarray(pixels), kind, **options)


def probabilities(predictions: list[dict]) -> list[list[float]]:
    return [each["probabilities"] for each in predictions]


@pytest.fixture(autouse=True)
def the_server_goes_on(small_server: Server) -> Iterator[None]:
    yield
    status, answer = small_server.post(PREDICT, instances([encoded("PNG")]))
    assert status == 200 and len(answer["predictions"]) == 1 and small_server.process.poll() is None


def test_every_test_row_gets_its_submitted_label_from_many_clients_at_once(small_server, exported, rows):
    chunks = [rows[start : start + 7] for start in range(0, len(rows), 7)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda c: small_server.post(PREDICT, instances([data for _, data in c])), chunks))
    assert {status for status, _ in answers} == {200}
    predictions = [prediction for _, answer in answers for prediction in answer["predictions"]]
    ids = np.array([name for name, _ in rows])
    _, stored = load_scores(exported.blend / "test.npz", ids)
    np.testing.assert_allclose(probabilities(predictions), stored, atol=5e-4)
    (file,) = exported.submissions.glob("*.csv")
    labels = pd.read_csv(file, dtype=str).set_index("id").loc[ids, "label"].tolist()
    assert len(labels) == 150 and [str(p["class_id"]) for p in predictions] == labels


def test_the_request_of_the_guide_is_answered(small_server: Server, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(encoded("JPEG"))
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"python - <<'END'\n(.*?)\n {4}END", text, re.DOTALL)
    code = textwrap.dedent(code).replace("127.0.0.1:8501", f"127.0.0.1:{small_server.port}")
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
    (prediction,) = json.loads(printed)["predictions"]
    assert prediction.keys() == {"class_id", "class_name", "probabilities"}


def test_curl_sends_an_image_file_as_it_is(small_server: Server, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated
    (tmp_path / "a.jpg").write_bytes(image := encoded("JPEG", exif=exif))
    expected = small_server.post(PREDICT, instances([image]))[1]["predictions"]
    command = ["curl", "--silent", "--data-binary", "@a.jpg", f"http://127.0.0.1:{small_server.port}{PREDICT}"]
    answer = json.loads(subprocess.check_output(command, cwd=tmp_path, text=True))["predictions"]
    assert len(answer) == 1 and answer[0]["class_id"] == expected[0]["class_id"]
    np.testing.assert_allclose(probabilities(answer), probabilities(expected), atol=1e-5)


BOMB = encode_image(Image.new("1", (8_000, 8_000)))  # black pixels in a few kilobytes
HOSTILE = {
    "truncated": (instances([encoded("JPEG", (300, 300))[:2_000]]), 400, "cannot be decoded"),
    "one bad image of three": (instances([encoded("PNG"), b"\x89PNG\r\n\x1a\n junk", encoded("PNG")]), 400, "instance 1: "),
    "decompression bomb": (instances([BOMB]), 400, "8000 x 8000 pixels are more than the 50,000,000"),
    "web page": (instances([b"<html></html>"]), 400, "a web page or XML, not an image"),
    "not base64": (b'{"instances": [{"b64": "%%%"}]}', 400, "instance 0: b64 is not base64"),
    "too many instances": (b'{"instances": [' + b"1," * 64 + b"1]}", 400, "65 instances were sent"),
    "wrong JSON": (b'{"instances": [', 400, "the body is not JSON; expected"),
    "not text": (b"\xff\xfe\x00", 400, "image"),
    "huge": (b"x" * 4_000_001, 413, "more than 4,000,000 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_answered_with_what_was_expected_and_the_server_goes_on(small_server: Server, name) -> None:
    body, expected, message = HOSTILE[name]
    body = json.dumps(body).encode() if isinstance(body, dict) else body
    status, answer, _ = small_server.request("POST", PREDICT, body)
    assert status == expected and message in json.loads(answer)["error"]


def test_wrong_methods_hosts_and_content_types_are_refused(small_server: Server) -> None:
    assert small_server.request("GET", PREDICT)[0] == 405
    assert small_server.request("POST", "/photo", encoded("PNG"), {"Content-Type": "text/plain"})[0] == 415
    # A page of another site that resolves its own name to 127.0.0.1 reads nothing.
    assert small_server.request("GET", "/training/0.png", headers={"Host": "attacker.example"})[0] == 400
    assert small_server.request("GET", "/healthz", headers={"Host": f"localhost:{small_server.port}"})[0] == 200


def exchange(server: Server, data: bytes) -> bytes:
    """Send raw bytes and return all that comes back until the server closes."""
    with server.connect() as connection, connection.makefile("rb") as received:
        connection.sendall(data)
        return received.read()


RAW = {  # name -> (what is sent, the beginning of the answer)
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "(HTTP/1.[01] 4)?"),
    "long header": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", "(HTTP/1.[01] 4)?"),
    "negative length": (POST % b"Content-Length: -5\r\n\r\n", "(HTTP/1.[01] 4)?"),
    "giant length": (POST % b"Content-Length: 99999999999999999999999\r\n\r\n", "(HTTP/1.[01] 4)?"),
    "body that stops": (POST % b"Content-Length: 1000\r\n\r\n{", "HTTP/1.1 4"),
}


@pytest.mark.parametrize("name", RAW)
def test_what_is_not_http_or_stops_gets_a_4xx_or_a_clean_close_within_the_time_limit(small_server, name) -> None:
    (sent, expected), started = RAW[name], time.monotonic()
    try:
        answer = exchange(small_server, sent)
    except ConnectionResetError:  # closed while we were still sending
        answer = b""
    assert re.fullmatch(expected, answer[:10].decode()) and time.monotonic() - started < 15


def test_an_endless_chunked_body_is_cut_off(small_server: Server) -> None:
    sent = 0
    with small_server.connect() as connection:
        connection.sendall(POST % b"Transfer-Encoding: chunked\r\n\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while sent < 40_000_000:  # what the server reads, and what fits into the buffers of the connection
                connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                sent += 65_536


def test_hundreds_of_open_connections_do_not_stop_the_server(small_server: Server) -> None:
    open_sockets = [small_server.connect() for _ in range(500)]
    try:
        assert small_server.request("GET", "/healthz")[0] == 200
    finally:
        for connection in open_sockets:
            connection.close()


def test_more_images_than_may_wait_get_503(small_server: Server) -> None:
    body = instances([encoded("PNG", (100, 100))] * 40)  # two such requests are more than may wait
    with ThreadPoolExecutor(8) as pool:
        statuses = {status for status, _ in pool.map(lambda _: small_server.post(PREDICT, body), range(8))}
    assert statuses == {200, 503}


def test_the_page_loads_nothing_from_elsewhere_and_its_policy_forbids_it(small_server: Server) -> None:
    for path in ("/", "/page.js", "/page.css"):
        status, body, headers = small_server.request("GET", path)
        assert status == 200 and b"://" not in body
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["base-uri"] == "'none'" and policy["script-src"] == "'self'"
        assert "unsafe" not in headers["content-security-policy"] and headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in small_server.request("GET", "/")[1]


def test_a_photo_gets_classes_and_similar_training_images(small_server: Server, rows: list[tuple[str, bytes]]) -> None:
    answer, deadline = {"compared": 0}, time.monotonic() + 60
    while answer["compared"] < 450:  # the features of the training images are computed after the start
        assert time.monotonic() < deadline
        headers = {"Content-Type": "application/octet-stream"}
        status, body, _ = small_server.request("POST", "/photo", rows[0][1], headers)
        answer = json.loads(body)
    assert status == 200 and len(answer["top"]) == 5 and len(answer["similar"]) == 6
    assert answer["class_name"] == answer["top"][0]["class_name"]
    status, picture, _ = small_server.request("GET", f"/training/{answer['similar'][0]['row']}.png")
    assert status == 200 and Image.open(io.BytesIO(picture)).size == (16, 16)
    assert small_server.request("GET", "/training/99999999999.png")[0] == 404


def test_sigterm_ends_it_after_the_running_requests_and_ctrl_c_says_that_it_was_stopped(small_server, exported, rows):
    images = [data for _, data in rows[:20]] + [encoded("WEBP")]
    expected = small_server.post(PREDICT, instances(images))[1]["predictions"]
    server = start(exported.command("serve", "--address", "127.0.0.1:0"))
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(server.post, PREDICT, instances(images)) for _ in range(4)]
            while not json.loads(server.request("GET", "/healthz")[1])["waiting"]:
                if all(answer.done() for answer in answers):
                    break
            server.process.terminate()
            assert server.process.wait(30) == 0
        for answer in answers:
            status, content = answer.result()
            assert status == 200
            np.testing.assert_allclose(probabilities(content["predictions"]), probabilities(expected), atol=1e-5)
    finally:
        server.process.kill()
    server = start(exported.command("serve", "--address", "127.0.0.1:0"), stderr=-1)
    server.process.send_signal(signal.SIGINT)
    out, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, out, err) == (130, "", "goldfold: the server was stopped\n")


def test_the_server_says_that_the_blend_or_the_data_are_no_longer_those_of_the_export(exported: Workspace) -> None:
    bundle, job = load_bundle(exported.work / "export" / "blend"), exported.job()
    assert outdated_lines(job, bundle) == []
    (line,) = outdated_lines(job, replace(bundle, data="before a label was corrected"))
    assert "of other data" in line
    (line,) = outdated_lines(job, replace(bundle, digest="of other weights"))
    assert "an earlier blend" in line and "`make export` makes it again" in line


def test_what_cannot_be_served_is_one_sentence(exported: Workspace, small_server: Server) -> None:
    from competition.serving.server import listen  # needs packages that may be missing, as small_server does

    refusal = exported.refused("serve", "--member", "slim")
    assert re.search("holds no finished export; `(make export MEMBER=|goldfold export --member )slim", refusal)
    for address, problem in (("8501", "expected HOST:PORT"), (f"127.0.0.1:{small_server.port}", "cannot be used")):
        with pytest.raises(UserError, match=problem):
            listen(address)


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
