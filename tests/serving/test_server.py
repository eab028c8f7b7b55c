"""The server answers like TensorFlow Serving, and nothing that a client sends stops it."""

import base64
import io
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import ROOT
from PIL import Image
from servers import Server, start
from stages import Workspace

from competition.ensemble.predictions import load_scores

PREDICT = "/v1/models/goldfold:predict"


def instances(images: list[bytes]) -> dict[str, object]:
    return {"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}


def encoded(kind: str, sides: tuple[int, int] = (40, 30), **options) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (*sides, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def assert_serves(server: Server) -> None:
    status, answer = server.post(PREDICT, instances([encoded("PNG")]))
    assert status == 200 and len(answer["predictions"]) == 1 and server.process.poll() is None


def test_every_test_row_gets_its_submitted_label_from_many_clients_at_once(small_server, exported, rows):
    chunks = [rows[start : start + 7] for start in range(0, len(rows), 7)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda c: small_server.post(PREDICT, instances([data for _, data in c])), chunks))
    assert {status for status, _ in answers} == {200}
    predictions = [prediction for _, answer in answers for prediction in answer["predictions"]]
    ids = np.array([name for name, _ in rows])
    _, stored = load_scores(exported.blend / "test.npz", ids)
    np.testing.assert_allclose([p["probabilities"] for p in predictions], stored, atol=5e-4)
    (file,) = exported.submissions.glob("*.csv")
    labels = pd.read_csv(file, dtype=str).set_index("id").loc[ids, "label"].tolist()
    assert len(labels) == 150 and [str(p["class_id"]) for p in predictions] == labels
    metrics = small_server.request("GET", "/metrics")[1].decode()
    called = float(metrics.split("goldfold_batch_images_count ")[1].split()[0])
    assert 'goldfold_requests_total{route="/v1/models/goldfold:predict",status="200"}' in metrics
    assert called < 150  # images were predicted together


def test_the_request_of_the_guide_is_answered(small_server: Server, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(encoded("JPEG"))
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"python - <<'END'\n(.*?)\n {4}END", text, re.DOTALL)
    code = textwrap.dedent(code).replace("127.0.0.1:8501", f"127.0.0.1:{small_server.port}")
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
    (prediction,) = json.loads(printed)["predictions"]
    assert prediction.keys() == {"class_id", "class_name", "probabilities"}


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [(["-F", "file=@a.jpg", "-F", "note=hello", "-F", "more=@b.png"], "ab"), (["--data-binary", "@b.png"], "b")],
)
def test_curl_sends_image_files_as_they_are(small_server: Server, tmp_path: Path, arguments, sent) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated, which TensorFlow does not read
    images = {"a": encoded("JPEG", exif=exif), "b": encoded("PNG", (50, 20))}
    for name, path in {"a": "a.jpg", "b": "b.png"}.items():
        (tmp_path / path).write_bytes(images[name])
    expected = small_server.post(PREDICT, instances([images[name] for name in sent]))[1]["predictions"]
    url = f"http://127.0.0.1:{small_server.port}{PREDICT}"
    printed = subprocess.check_output(["curl", "--silent", *arguments, url], cwd=tmp_path, text=True)
    answer = json.loads(printed)["predictions"]
    assert len(answer) == len(sent) and [each["class_id"] for each in answer] == [e["class_id"] for e in expected]
    probabilities = ([each["probabilities"] for each in predictions] for predictions in (answer, expected))
    np.testing.assert_allclose(*probabilities, atol=1e-5)


def bomb(side: int) -> bytes:
    """A valid PNG of side x side black pixels in a few kilobytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    compressor = zlib.compressobj(9)
    rows = b"".join(compressor.compress(bytes(1 + 3 * side)) for _ in range(side)) + compressor.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


FORM = b'--b\r\nContent-Disposition: form-data; name="n"%s\r\n\r\n1\r\n'
HOSTILE = {
    "form without a file": (FORM % b"" + b"--b--\r\n", 400, "the form holds no file"),
    "no form": (b"junk", 400, "the form cannot be read"),
    "form with too many files": (FORM % b'; filename="a"' * 65 + b"--b--\r\n", 400, "form cannot be read: Too many files"),
    "truncated": (as_json(instances([encoded("JPEG", (300, 300))[:2_000]])), 400, "cannot be decoded"),
    "one bad image of three": (
        as_json(instances([encoded("PNG"), b"\x89PNG\r\n\x1a\n junk", encoded("PNG")])), 400, "instance 1: "
    ),
    "decompression bomb": (as_json(instances([bomb(8_000)])), 400, "8000 x 8000 pixels are more than the 50,000,000"),
    "web page": (as_json(instances([b"<html></html>"])), 400, "a web page or XML, not an image"),
    "not base64": (b'{"instances": [{"b64": "%%%"}]}', 400, "instance 0: b64 is not base64"),
    "too many instances": (b'{"instances": [' + b"1," * 64 + b"1]}", 400, "65 instances were sent"),
    "another signature": (b'{"signature_name": "images", "instances": [1]}', 400, "expected serving_default"),
    "wrong JSON": (b'{"instances": [', 400, "the body is not JSON; expected"),
    "not text": (b"\xff\xfe\x00", 400, "a form with image files, or one image as the body"),
    "huge": (b"x" * 4_000_001, 413, "more than 4,000,000 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_answered_with_what_was_expected_and_the_server_goes_on(small_server: Server, name) -> None:
    body, expected, message = HOSTILE[name]
    headers = {"Content-Type": "multipart/form-data; boundary=b"} if "form" in name else {}
    status, answer, _ = small_server.request("POST", PREDICT, body, headers)
    assert status == expected and message in json.loads(answer)["error"]
    assert_serves(small_server)


def test_wrong_methods_hosts_and_content_types_are_refused(small_server: Server) -> None:
    assert small_server.request("GET", PREDICT)[0] == 405
    assert small_server.request("POST", "/photo", encoded("PNG"), {"Content-Type": "text/plain"})[0] == 415
    # A page of another site that resolves its own name to 127.0.0.1 reads nothing.
    assert small_server.request("GET", "/training/0.png", headers={"Host": "attacker.example"})[0] == 400
    assert small_server.request("GET", "/healthz", headers={"Host": f"localhost:{small_server.port}"})[0] == 200


def exchange(server: Server, data: bytes) -> bytes:
    """Send raw bytes and return all that comes back until the server closes."""
    with server.connect() as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
        return received


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the start of a TLS handshake
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
        b"POST /photo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/models/goldfold:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    ],
    ids=["TLS", "long header", "negative length", "giant length"],
)
def test_what_is_not_http_gets_a_4xx_or_a_clean_close(small_server: Server, data: bytes) -> None:
    try:
        answer = exchange(small_server, data)
    except ConnectionResetError:  # closed while we were still sending
        answer = b""
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert_serves(small_server)


def test_an_endless_chunked_body_is_cut_off(small_server: Server) -> None:
    sent = 0
    with small_server.connect() as connection:
        connection.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while sent < 40_000_000:  # what the server reads, and what fits into the buffers of the connection
                connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                sent += 65_536
    assert_serves(small_server)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET /healthz HTT", b""),
        (f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{{".encode(), b"HTTP/1.1 408"),
        (b"", b""),
    ],
    ids=["header", "body", "nothing"],
)
def test_a_client_that_stops_sending_is_cut_off_after_the_time_limit(small_server: Server, sent, answer) -> None:
    started = time.monotonic()
    received = exchange(small_server, sent)
    assert received.startswith(answer) and bool(received) == bool(answer)
    assert 0.5 < time.monotonic() - started < 15


def test_a_thousand_open_connections_do_not_stop_the_server(small_server: Server) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2_048, hard)), hard))
    open_sockets = [small_server.connect() for _ in range(1_000)]
    try:
        assert_serves(small_server)
        for connection in open_sockets:  # every one is closed, without an answer to nothing
            assert connection.recv(1) == b""
    finally:
        for connection in open_sockets:
            connection.close()
    assert_serves(small_server)


def test_more_images_than_may_wait_get_503(small_server: Server) -> None:
    statuses = []
    body = instances([encoded("PNG", (100, 100))] * 40)  # two such requests are more than may wait

    def send() -> None:
        statuses.append(small_server.post(PREDICT, body)[0])

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 503}
    assert_serves(small_server)


def test_the_page_loads_nothing_from_elsewhere_and_its_policy_forbids_it(small_server: Server) -> None:
    for path in ("/", "/page.js", "/page.css"):
        status, body, headers = small_server.request("GET", path)
        assert status == 200 and b"://" not in body
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["base-uri"] == "'none'" and policy["script-src"] == "'self'"
        assert "unsafe" not in headers["content-security-policy"] and headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in small_server.request("GET", "/")[1]


def test_a_photo_gets_classes_and_similar_training_images(small_server: Server, rows: list[tuple[str, bytes]]) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    deadline = time.monotonic() + 60
    while True:  # the features of the training images are computed after the start
        status, body, _ = small_server.request("POST", "/photo", rows[0][1], headers)
        answer = json.loads(body)
        if answer["compared"] == 450:
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert status == 200 and len(answer["top"]) == 5 and len(answer["similar"]) == 6
    assert answer["class_name"] == answer["top"][0]["class_name"]
    status, picture, _ = small_server.request("GET", f"/training/{answer['similar'][0]['row']}.png")
    assert status == 200 and Image.open(io.BytesIO(picture)).size == (16, 16)
    assert small_server.request("GET", "/training/99999999999.png")[0] == 404


def test_sigterm_ends_the_command_after_the_running_requests_and_ctrl_c_says_that_it_was_stopped(
    small_server, exported, rows
):
    images = [data for _, data in rows[:20]] + [encoded("WEBP")]
    expected = small_server.post(PREDICT, instances(images))[1]["predictions"]
    server = start(exported.command("serve", "--address", "127.0.0.1:0"), "http://127.0.0.1:")
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(server.post, PREDICT, instances(images)) for _ in range(4)]
            while "goldfold_waiting_images 0.0" in server.request("GET", "/metrics")[1].decode():
                if all(answer.done() for answer in answers):
                    break
            assert server.stop() == 0
        for answer in answers:
            status, content = answer.result()
            assert status == 200
            probs = [p["probabilities"] for p in content["predictions"]]
            np.testing.assert_allclose(probs, [p["probabilities"] for p in expected], atol=1e-5)
    finally:
        server.process.kill()
    server = start(exported.command("serve", "--address", "127.0.0.1:0"), "http://127.0.0.1:", stderr=-1)
    server.process.send_signal(signal.SIGINT)
    out, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, out, err) == (130, "", "goldfold: the server was stopped\n")


def test_what_cannot_be_served_is_one_sentence(exported: Workspace, finished: Workspace) -> None:
    refusal = exported.refused("serve", "--member", "slim", "--fold", "0")
    assert re.search("holds no finished export; `(make export MEMBER=|goldfold export --member )slim", refusal)
    assert "expected HOST:PORT" in exported.refused("serve", "--address", "8501")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "cannot be used" in exported.refused("serve", "--address", f"127.0.0.1:{port}")
