"""A headless Chromium driven over its debugging pipe (Chrome DevTools Protocol), without any package."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One page. Messages are JSON, each ended by a zero byte, on file descriptors 3 (to it) and 4 (from it)."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._to_write = os.pipe()
        self._from_read, from_write = os.pipe()

        def place_pipes() -> None:
            for number, pipe in ((103, to_read), (104, from_write), (3, 103), (4, 104)):
                os.dup2(pipe, number)

        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        command, silent = [program, *flags], subprocess.DEVNULL
        self._process = subprocess.Popen(command, stderr=silent, close_fds=False, preexec_fn=place_pipes)
        os.close(to_read)
        os.close(from_write)
        self._buffer, self._number, self.events = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        session = getattr(self, "_session", None)
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._to_write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from_read, 1 << 16)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {expression}")

    def drop(self, selector: str, *files: Path) -> None:
        """Drag files from outside the browser and drop them on the middle of an element."""
        script = f"(b => [b.x + b.width / 2, b.y + b.height / 2])(document.querySelector({selector!r}).getBoundingClientRect())"
        x, y = self.evaluate(script)
        data = {"items": [], "files": [*map(str, files)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def requested(self) -> list[str]:
        """Every address that the page asked for."""
        return [params["request"]["url"] for params in self._events("Network.requestWillBeSent")]

    def problems(self) -> list[str]:
        """Errors of the console: exceptions, blocked requests, violations of the content-security policy."""
        entries = [params["entry"] for params in self._events("Log.entryAdded")]
        thrown = map(str, self._events("Runtime.exceptionThrown"))
        return [*thrown, *(entry["text"] for entry in entries if entry["level"] == "error")]

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to_write)
        os.close(self._from_read)


@pytest.fixture(scope="module", name="page")
def open_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
