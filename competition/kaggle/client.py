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

import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.config.redaction import printable, redact, redacted_answer
from competition.files.child_process import ChildEnded, ChildStalled, Event, run_child
from competition.kaggle import credentials
from competition.kaggle.archive import Progress
from competition.kaggle.errors import RETRYABLE, Failure, error_from_failure, failure_from, retry_line

OnEvent = Callable[[Event], None]  # receives the events of the child process
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
    arguments: Mapping[str, object],
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

    def record_progress(event: Event) -> None:
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
    client: Client, credential: credentials.Credential, request: Event, on_event: OnEvent
) -> tuple[Any, Failure | None]:
    """Run one child process: (value, None) or (None, failure)."""
    temporary = Path(tempfile.mkdtemp(prefix="kaggle-"))  # the package's settings and upload links; removed at the end
    environment = credentials.child_environment(client.environment, credential)
    environment |= {"KAGGLE_CONFIG_DIR": str(temporary), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    events = run_child("competition.kaggle.child", request, environment, client.policy.stall)
    try:
        for event in events:
            if event["event"] == "result":
                return redacted_answer(event["value"], credential.secrets), None
            if event["event"] == "error":
                return None, failure_from(event, credential, request["action"])
            if "text" in event:
                event["text"] = printable(redact(event["text"], credential.secrets), keep="\n\t")
            on_event(event)
    except ChildStalled as stalled:
        return None, Failure("stalled", str(stalled))
    except ChildEnded as ended:
        last = printable(redact(" ".join(str(ended).split()), credential.secrets))[-300:]
        return None, Failure("client", f"it ended without an answer: {last}")
    finally:
        events.close()
        shutil.rmtree(temporary, ignore_errors=True)
    raise AssertionError("the last event is a result or an error")


def progress_of(progress: Progress) -> OnEvent:
    """Event handler that calls `progress`."""

    def on_event(event: Event) -> None:
        if event["event"] == "progress":
            progress(int(event["done"]), int(event["total"]))

    return on_event
