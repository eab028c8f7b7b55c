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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any

from competition.errors import Refusal
from competition.remote import credentials
from competition.remote.archive import Progress
from competition.remote.credentials import SETTINGS_URL
from competition.remote.secrets import redact

ROOT = Path(__file__).resolve().parents[2]
SITE = "https://www.kaggle.com"
PASSING = {"rate", "server", "connection", "stalled", "damaged", "answer", "expired"}  # these may be gone next time


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


class KaggleRefusal(Refusal):
    """A failure of Kaggle in one sentence. kind: rules, phone, access, missing, credentials, rate, server, connection,
    expired, stalled, answer, page, damaged, disk, upload, notebooks, push, sources, dataset, name, interrupted or
    client."""

    def __init__(self, kind: str, sentence: str, retry_after: float | None = None, status: int = 0) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.retry_after = retry_after  # seconds that Kaggle asks to wait
        self.status = status  # of HTTP; 0 = there was none


@dataclass(frozen=True)
class Failure:
    kind: str
    message: str  # the server's or the client's own words, without secrets
    retry_after: float | None = None  # seconds
    status: int = 0  # of HTTP


def slug_of(text: str) -> str:
    """The slug in what a user gave: a slug, or any link to the competition."""
    found = re.search(r"kaggle\.com/(?:competitions|c)/([^/?#\s]+)", text)
    slug = found.group(1) if found else text.strip().strip("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}", slug):
        raise Refusal(f"{text!r} is no competition: expected its slug, e.g. tpu-getting-started, or a link to it.")
    return slug


def ask(
    client: Client,
    action: str,
    arguments: Mapping[str, Any],
    slug: str,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    once: bool = False,
) -> Any:
    """Run one action of kaggle_child, with patience; its value.

    slug: the competition, dataset or kernel, for the sentences. once: never repeat (the call may have had its effect).
    """
    credential = credentials.find(client.environment)
    for attempt in range(1, client.patience.tries + 1):
        value, failure = _run(client, credential, action, arguments, on_event)
        if failure is None:
            return value
        wait = client.patience.first_wait * 2 ** (attempt - 1) * (1 + random.random() / 4)
        if failure.retry_after is not None:
            wait = max(wait, failure.retry_after)
        too_long = (failure.retry_after or 0) > client.patience.longest_wait
        if once or failure.kind not in PASSING or attempt == client.patience.tries or too_long:
            sentence = _sentence(failure, action, slug, credential, attempt)
            raise KaggleRefusal(failure.kind, sentence, failure.retry_after, failure.status)
        wait = min(wait, client.patience.longest_wait)
        client.say(f"Kaggle: {failure.message}; try {attempt + 1} of {client.patience.tries} in {wait:.0f} s")
        time.sleep(wait)
    raise AssertionError("patience.tries is at least 1")


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
        [sys.executable, "-P", "-m", "competition.remote.kaggle_child"],
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
            return None, replace(_failure(event, credential), status=int(event.get("status") or 0))
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


def _failure(event: Mapping[str, Any], credential: credentials.Credential) -> Failure:
    message = redact(" ".join(str(event.get("message", "")).split())[:500], credential.secrets)
    if event["kind"] != "http":
        return Failure(event["kind"], message)
    status, low = int(event["status"]), message.lower()
    if status == 429:
        return Failure("rate", f"too many requests ({message})", _seconds(event.get("retry_after")))
    if status >= 500:
        return Failure("server", f"the server failed with {status} ({message})", _seconds(event.get("retry_after")))
    kinds = {401: "credentials", 404: "missing"}
    if status in (400, 403) and re.search(r"only .*(notebook|kernel)|(notebook|kernel)s? only", low):
        return Failure("notebooks", message)
    if status == 403:
        kind = "rules" if "rule" in low else "phone" if "phone" in low or "verif" in low else "access"
        return Failure(kind, message)
    return Failure(kinds.get(status, "client"), f"{status} {message}")


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After: seconds, or a date (RFC 9110)."""
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _sentence(failure: Failure, action: str, slug: str, credential: credentials.Credential, tries: int) -> str:
    said = failure.message.rstrip(".")
    after = f" after {tries} tries" if tries > 1 else ""
    wait = f"; Kaggle asks to wait {failure.retry_after:.0f} s" if failure.retry_after else ""
    again = "run this again later; it goes on where it stopped"
    sentences = {
        "rules": f"the rules of {slug} are not accepted yet: accept them at {SITE}/competitions/{slug}/rules, then run "
        "this again (only you can).",
        "phone": f"Kaggle wants a verified phone number for this ({said}): verify it at {SETTINGS_URL}, then run this "
        "again.",
        "access": f"Kaggle does not let this account see {slug} ({said}): check the spelling (the last part "
        "of the link), and that it is yours or that you have joined.",
        "missing": f"Kaggle knows no {slug} ({said}): check the spelling; the name is the last part of the link.",
        "credentials": f"Kaggle does not accept the credential from {credential.source} ({said}): make a token at "
        f"{SETTINGS_URL}, or unset the old one.",
        "rate": f"Kaggle limits the rate of requests{after} ({said}){wait}: {again}.",
        "server": f"Kaggle is in trouble{after} ({said}): {again}.",
        "expired": f"the link that Kaggle gave for {slug} had expired{after} ({said}): {again}.",
        "connection": f"the connection to Kaggle failed{after} ({said}): check the network, then run this again.",
        "stalled": f"Kaggle stopped answering{after} ({said}): {again}.",
        "answer": f"Kaggle's answer could not be understood{after} ({said}): is a login page or a proxy in between?",
        "page": f"{said}: a login page or a proxy may be in between; log in at {SITE}, check the credential from "
        f"{credential.source}, then run this again.",
        "damaged": f"what came from Kaggle is damaged{after} ({said}): run this again.",
        "disk": f"the disk could not take what Kaggle sent ({said}): make room, then run this again.",
        "upload": f"the upload to {slug} was refused ({said}): nothing was submitted; run this again.",
        "notebooks": f"{slug} takes submissions from Kaggle notebooks only ({said}): set kaggle.submit to notebook, then "
        "`make kernel submit`; nothing was submitted.",
        "push": f"Kaggle did not take the kernel {slug}: {said}.",
        "sources": f"Kaggle would run {slug} without its {said}: join the competition and accept its rules, and check "
        "the spelling of every source.",
        "dataset": f"Kaggle did not take the dataset {slug}: {said}.",
        "name": f"the output of {slug} is refused, nothing of it was kept: {said}.",
    }
    return sentences.get(failure.kind, f"the Kaggle client failed at {action} of {slug}: {said}.")


def progress_of(progress: Progress | None, total: int) -> Callable[[dict[str, Any]], None]:
    """Events of the child as calls of a progress callback."""

    def on_event(event: dict[str, Any]) -> None:
        if progress and event["event"] == "progress":
            progress(int(event["done"]), total)

    return on_event
