"""Client for Kaggle: each call runs the `kaggle` package in a child process with a clean environment.

Retries of every call, downloads included, are decided here: `ask` repeats a call after the failures in
errors.RETRYABLE, `pause` gives the wait before the next attempt, `RetryPolicy` (kaggle.* in params.yaml) the limits.
A child without progress is killed; every other failure becomes one sentence for the user. Exit codes are ignored:
answers and files are checked instead.
"""

# Why a child process and not kagglesdk's KaggleClient called directly: its session has no timeout, it prefers the
# credentials in os.environ over those it is given, OAuth tokens would have to be renewed by hand, kernels_push and the
# uploads of datasets and submissions exist in the kaggle package only, and a stalled call in this process cannot be
# killed.

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
from competition.config.redaction import printable, redact, redacted_answer
from competition.kaggle import credentials
from competition.kaggle.archive import Progress
from competition.kaggle.errors import (
    RETRYABLE,
    Failure,
    error_from_failure,
    failure_from,
    retry_line,
)

OnEvent = Callable[[dict[str, Any]], None]  # receives the events of the child process
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of attempts and waits."""

    max_attempts: int  # attempts of one call
    first_wait: float  # seconds before the second attempt; doubled for every later one, with jitter
    longest_wait: float  # seconds: maximum of one wait; a longer Retry-After ends the attempts
    stall: float  # seconds without progress after which a call is stopped


@dataclass(frozen=True)
class Client:
    """Credentials, limits and output of all calls."""

    environment: Mapping[str, str]  # of this process; the child gets the part that Kaggle needs
    policy: RetryPolicy
    print_line: Callable[[str], None]  # shows a line to the user, e.g. about a retry


def competition_slug(text: str) -> str:
    """The slug of a competition, from the slug itself or any link to the competition."""
    match = re.search(r"kaggle\.com/(?:competitions|c)/([^/?#\s]+)", text)
    slug = match.group(1) if match else text.strip().strip("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}", slug):
        raise UserError(f"{text!r} is not a competition: expected its slug, e.g. tpu-getting-started, or a link to it.")
    return slug


def ask(
    client: Client,
    action: str,
    arguments: Mapping[str, Any],
    slug: str,
    on_event: OnEvent = lambda event: None,
    once: bool = False,
) -> Any:
    """Run one action of child.py and return its value; retry after a failure that may be temporary.

    An attempt that made progress (more bytes than any before) resets the count of attempts. A Retry-After above
    policy.longest_wait ends the attempts.
    slug: the competition, dataset or kernel, for error messages.
    once: do not retry, for a call that may have taken effect although it failed.
    """
    credential, policy = credentials.find_credential(client.environment), client.policy
    max_done, previous_max_done, attempt = 0, 0, 0

    def record_progress(event: dict[str, Any]) -> None:
        nonlocal max_done
        if event["event"] == "progress":
            max_done = max(max_done, int(event["done"]))
        on_event(event)

    while True:
        value, failure = _run(client, credential, {"action": action, "arguments": dict(arguments)}, record_progress)
        if failure is None:
            return value
        attempt = 1 if max_done > previous_max_done else attempt + 1
        previous_max_done = max_done
        wait = pause(policy, attempt, failure.retry_after)
        if once or wait is None or failure.kind not in RETRYABLE:
            raise error_from_failure(failure, action, slug, credential, attempt)
        client.print_line(retry_line(failure.message, attempt + 1, policy.max_attempts, wait))
        time.sleep(wait)


def pause(policy: RetryPolicy, attempt: int, retry_after: float | None) -> float | None:
    """Seconds to wait after failed attempt number `attempt` (from 1); None to give up.

    retry_after: seconds that the server asks for; above policy.longest_wait the call is not repeated.
    """
    if attempt >= policy.max_attempts or (retry_after or 0) > policy.longest_wait:
        return None
    backoff = policy.first_wait * 2 ** (attempt - 1) * (1 + random.random() / 4)
    return min(max(backoff, retry_after or 0), policy.longest_wait)


def _run(
    client: Client, credential: credentials.Credential, request: Mapping[str, Any], on_event: OnEvent
) -> tuple[Any, Failure | None]:
    """Run one child process: (value, None) or (None, failure)."""
    temporary = Path(tempfile.mkdtemp(prefix="kaggle-"))  # the package's settings and upload links; removed at the end
    environment = credentials.child_environment(client.environment, credential)
    environment |= {"KAGGLE_CONFIG_DIR": str(temporary), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "competition.kaggle.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this process only, which then kills the child
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
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        return _answer(client, credential, lines, printed, on_event)
    except BrokenPipeError:
        return None, Failure(
            "client", printable(redact("".join(printed), credential.secrets))[-300:] or "it did not start"
        )
    finally:
        _kill(child)
        for reader in readers:
            reader.join(timeout=5)
        for stream in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        shutil.rmtree(temporary, ignore_errors=True)


def _answer(
    client: Client,
    credential: credentials.Credential,
    lines: "queue.Queue[str | None]",
    printed: list[str],
    on_event: OnEvent,
) -> tuple[Any, Failure | None]:
    """Read events until the result or an error. lines: of the child's stdout, None at its end. printed: its stderr."""
    while True:
        try:
            line = lines.get(timeout=client.policy.stall)
        except queue.Empty:
            return None, Failure("stalled", f"no progress for {client.policy.stall:.0f} s")
        if line is None:
            last = printable(redact(" ".join("".join(printed).split()), credential.secrets))[-300:]
            return None, Failure("client", f"it ended without an answer: {last}")
        event = json.loads(line)
        if event["event"] == "result":
            return redacted_answer(event["value"], credential.secrets), None
        if event["event"] == "error":
            return None, failure_from(event, credential)
        if "text" in event:
            event["text"] = printable(redact(event["text"], credential.secrets), keep="\n\t")
        on_event(event)


def _read_lines(stream: IO[str], on_line: Callable[[str | None], None]) -> None:
    """Pass each line to `on_line`, and None at the end, which is also reached if another thread closes the stream."""
    with contextlib.suppress(ValueError):
        for line in stream:
            on_line(line)
    on_line(None)


def _kill(child: "subprocess.Popen[str]") -> None:
    """Kill the child with its own child processes, which ends the reading of its output."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def progress_of(progress: Progress) -> OnEvent:
    """Event handler that calls `progress`."""

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            progress(int(event["done"]), int(event["total"]))

    return on_event
