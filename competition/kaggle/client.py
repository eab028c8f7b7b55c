"""Client for Kaggle: each call runs the `kaggle` package in a child process with a clean environment.

Retries of every call, downloads included, are decided here: `ask` repeats a call after the failures in
errors.RETRYABLE, `wait_before_retry` waits before the next attempt, kaggle.* in params.yaml has the limits.
A child without progress is killed. Every failure becomes one sentence for the user. The exit code of the child is ignored: its
last event says whether it succeeded, and the callers check the files that it writes.
"""

# Why a child process and not kagglesdk's KaggleClient called directly: its session has no timeout, it prefers the
# credentials in os.environ over those it is given, OAuth tokens would have to be renewed by hand, kernels_push and the
# uploads of datasets and submissions exist in the kaggle package only, and a stalled call in this process cannot be
# killed.

import random
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.config.params import KaggleParams
from competition.config.redaction import printable, redact, redacted_answer
from competition.files.child_process import ChildEnded, ChildStalled, Event, run_child
from competition.kaggle import credentials
from competition.kaggle.errors import RETRYABLE, KaggleError, error_from_event

OnEvent = Callable[[Event], None]  # receives the events of the child process
Answer = Mapping[str, object]  # a JSON object of Kaggle
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Client:
    """Credentials, limits and output of all calls."""

    environment: Mapping[str, str]  # of this process; the child gets the part that Kaggle needs
    policy: KaggleParams  # its limits of attempts and waits
    print_line: Callable[[str], None]  # shows a line to the user, e.g. about a retry


def competition_slug(text: str) -> str:
    """The slug of a competition, from the slug itself or any link to the competition."""
    match = re.search(r"kaggle\.com/(?:competitions|c)/([^/?#\s]+)", text)
    slug = match.group(1) if match else text.strip().strip("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}", slug):
        raise UserError(f"{text!r} is not a competition: expected its slug, e.g. tpu-getting-started, or a link to it.")
    return slug


def kernel_fields(kernel: str, version: int) -> dict[str, object]:
    """The fields of a request about a version of a kernel.  kernel: owner/slug.  version: 0 = the newest."""
    owner, _, slug = kernel.partition("/")
    return {"userName": owner, "kernelSlug": slug, "versionLabel": f"v{version}" if version else None}


def call(client: Client, slug: str, service: str, method: str, /, *, once: bool = False, **fields: object) -> Answer:
    """Kaggle's answer to one request. Every text in it is on one line and without the credential.

    slug, once: as for `ask`.  service: competitions, datasets or kernels.  fields: as Kaggle names them.
    """
    arguments = {"service": service, "method": method, **fields}
    answer: Answer = ask(client, "call", arguments, slug, once=once)
    return answer


def ask(
    client: Client,
    action: str,
    arguments: Mapping[str, object],
    slug: str,
    on_event: OnEvent = lambda event: None,
    once: bool = False,
) -> Any:
    """Run one action of child_actions.py and return its value; retry after a failure that may be temporary.

    An attempt that got further than any before (a larger "done") is counted as the first one, so a long download never ends for
    want of attempts while it moves on. Raises KaggleError for a failure that is not repeated.
    slug: the competition, dataset or kernel, for error messages.  on_event: receives progress ("done", "total": bytes, or
    rows of a list) and what else the action emits.
    once: do not retry, because a failed call may have taken effect (a submission must not be sent twice).
    """
    credential = credentials.find_credential(client.environment)
    request, farthest, attempt = {"action": action, "arguments": dict(arguments)}, 0, 0
    while True:
        last, done = _last_event(client, credential, request, on_event)
        if last["event"] == "result":
            return redacted_answer(last["value"], credential.secrets)
        attempt = 1 if done > farthest else attempt + 1
        farthest = max(farthest, done)
        error = error_from_event(last, str(arguments.get("method", action)), slug, credential, attempt)
        if once or error.kind not in RETRYABLE or not wait_before_retry(client, attempt, error):
            raise error


def wait_before_retry(client: Client, attempt: int, error: KaggleError) -> bool:
    """Announce the next attempt and wait for it. Return False at once if the call is not to be repeated.

    attempt: number of the failed one, from 1. A Retry-After above policy.longest_wait ends the attempts.
    """
    policy = client.policy
    if attempt >= policy.max_attempts or error.retry_after > policy.longest_wait:
        return False
    backoff = policy.first_wait * 2 ** (attempt - 1) * (1 + random.random() / 4)
    wait = min(max(backoff, error.retry_after), policy.longest_wait)
    client.print_line(f"Kaggle: try {attempt + 1} of {policy.max_attempts} in {wait:.0f} s: {error.reason.rstrip('.')}")
    time.sleep(wait)
    return True


def _last_event(
    client: Client, credential: credentials.Credential, request: Event, on_event: OnEvent
) -> tuple[Event, int]:
    """Run one child process; return its last event, "result" or "error", and the largest "done" of the others."""
    done, environment = 0, credentials.child_environment(client.environment, credential)
    # For the package's settings and upload links.
    with tempfile.TemporaryDirectory(prefix="kaggle-", ignore_cleanup_errors=True) as temporary:
        environment |= {"KAGGLE_CONFIG_DIR": temporary, "TMPDIR": temporary, "PYTHONPATH": str(ROOT)}
        try:
            child = run_child("competition.kaggle.child_actions", request, environment, client.policy.stall)
            with closing(child) as events:
                for event in events:
                    if event["event"] in ("result", "error"):
                        return event, done
                    done = max(done, int(event.get("done", 0)))
                    if "text" in event:
                        event["text"] = printable(redact(event["text"], credential.secrets), keep="\n\t")
                    if event["event"] != "ready":
                        on_event(event)
        except ChildStalled as stalled:
            return {"event": "error", "kind": "stalled", "message": str(stalled)}, done
        except ChildEnded as ended:
            last = printable(redact(" ".join(str(ended).split()), credential.secrets))[-300:]
            return {"event": "error", "kind": "client", "message": f"it ended without an answer: {last}"}, done
    raise AssertionError("the last event is a result or an error")
