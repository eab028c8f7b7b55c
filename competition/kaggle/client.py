"""Kaggle, wrapped once: each call runs the real `kaggle` package in a child process with a clean environment.

A child that makes no progress is stopped; what may pass (429, 5xx, a lost connection) is tried again with patience;
every other failure becomes one sentence. Exit codes are never believed: answers and files are looked at.
"""

import contextlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from competition.config.errors import UserError
from competition.kaggle import credentials
from competition.kaggle.archive import Progress
from competition.kaggle.errors import PASSING, SITE, Failure, KaggleError, error_from_failure, failure_from, retry_line
from competition.kaggle.redaction import redact

__all__ = ["PASSING", "SITE", "Client", "KaggleError", "Patience", "ask", "pause", "progress_of", "slug_of"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Patience:
    """How long to wait for Kaggle before giving up."""

    tries: int  # of one call
    first_wait: float  # seconds before the second try; doubled for every later one, with jitter
    longest_wait: float  # seconds: cap of one wait; a Retry-After beyond it ends the tries
    stall: float  # seconds without progress after which a call is stopped


@dataclass(frozen=True)
class Client:
    """environment: of this process; only what Kaggle needs of it reaches the child. say: told of every retry."""

    environment: Mapping[str, str]
    patience: Patience
    say: Callable[[str], None]


def slug_of(text: str) -> str:
    """The slug in what a user gave: a slug, or any link to the competition."""
    found = re.search(r"kaggle\.com/(?:competitions|c)/([^/?#\s]+)", text)
    slug = found.group(1) if found else text.strip().strip("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}", slug):
        raise UserError(f"{text!r} is no competition: expected its slug, e.g. tpu-getting-started, or a link to it.")
    return slug


def ask(
    client: Client,
    action: str,
    arguments: Mapping[str, Any],
    slug: str,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    once: bool = False,
) -> Any:
    """Run one action of kaggle_child and return its value; a failure that may pass is tried again.

    A try after which more bytes than ever are here does not count. A Retry-After beyond patience.longest_wait ends the
    tries at once. slug: the competition, dataset or kernel, for the sentences.
    once: never repeat; for a call that may have had its effect although it failed.
    """
    credential, patience = credentials.find(client.environment), client.patience
    furthest, before, attempt = 0, 0, 0

    def heard(event: dict[str, Any]) -> None:
        nonlocal furthest
        if event["event"] == "progress":
            furthest = max(furthest, int(event["done"]))
        if on_event:
            on_event(event)

    while True:
        value, failure = _run(client, credential, action, arguments, heard)
        if failure is None:
            return value
        attempt = 1 if furthest > before else attempt + 1
        before = furthest
        wait = pause(patience, attempt, failure.retry_after)
        if once or wait is None or failure.kind not in PASSING:
            raise error_from_failure(failure, action, slug, credential, attempt)
        client.say(retry_line(failure.message, attempt + 1, patience.tries, wait))
        time.sleep(wait)


def pause(patience: Patience, attempt: int, retry_after: float | None) -> float | None:
    """Seconds to wait after failed try number `attempt`; None when there is no other try.

    retry_after: seconds that the server asks for; more than patience.longest_wait means that there is no other try.
    """
    if attempt >= patience.tries or (retry_after or 0) > patience.longest_wait:
        return None
    backoff = patience.first_wait * 2 ** (attempt - 1) * (1 + random.random() / 4)
    return min(max(backoff, retry_after or 0), patience.longest_wait)


def _run(
    client: Client,
    credential: credentials.Credential,
    action: str,
    arguments: Mapping[str, Any],
    on_event: Callable[[dict[str, Any]], None] | None,
) -> tuple[Any, Failure | None]:
    """One child from start to end: (value, None) or (None, why not)."""
    private = Path(tempfile.mkdtemp(prefix="kaggle-"))  # the client's settings and upload links end with the child
    environment = credentials.child_environment(client.environment, credential)
    environment |= {"KAGGLE_CONFIG_DIR": str(private), "TMPDIR": str(private), "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "competition.kaggle.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C is for us; we end the child
    )
    assert child.stdin and child.stdout and child.stderr
    lines: queue.Queue[str | None] = queue.Queue()
    printed: list[str] = []
    readers = [
        threading.Thread(target=_read_lines, args=(child.stdout, lines.put), daemon=True),
        threading.Thread(target=_read_lines, args=(child.stderr, lambda line: printed.append(line or "")), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        child.stdin.write(json.dumps({"action": action, "arguments": dict(arguments)}) + "\n")
        child.stdin.flush()
        return _answer(client, credential, lines, printed, on_event)
    except BrokenPipeError:
        return None, Failure("client", redact("".join(printed[-3:]), credential.secrets) or "it did not start")
    finally:
        _end(child)
        for reader in readers:
            reader.join(timeout=5)
        shutil.rmtree(private, ignore_errors=True)


def _answer(
    client: Client,
    credential: credentials.Credential,
    lines: "queue.Queue[str | None]",
    printed: list[str],
    on_event: Callable[[dict[str, Any]], None] | None,
) -> tuple[Any, Failure | None]:
    while True:
        try:
            line = lines.get(timeout=client.patience.stall)
        except queue.Empty:
            return None, Failure("stalled", f"no progress for {client.patience.stall:.0f} s")
        if line is None:
            last = redact(" ".join("".join(printed).split())[-300:], credential.secrets)
            return None, Failure("client", f"it ended without an answer: {last}")
        event = json.loads(line)
        if event["event"] == "result":
            return event["value"], None
        if event["event"] == "error":
            return None, failure_from(event, credential)
        if "text" in event:
            event["text"] = redact(event["text"], credential.secrets)
        if on_event:
            on_event(event)


def _read_lines(stream: IO[str], take: Callable[[str | None], None]) -> None:
    for line in stream:
        take(line)
    take(None)


def _end(child: "subprocess.Popen[str]") -> None:
    """Nothing of the child is left, however this call ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()


def progress_of(progress: Progress | None, total: int = 0) -> Callable[[dict[str, Any]], None]:
    """Events of the child as calls of a progress callback. total: used where the child does not know it."""

    def on_event(event: dict[str, Any]) -> None:
        if progress and event["event"] == "progress":
            progress(int(event["done"]), int(event["total"]) or total)

    return on_event
