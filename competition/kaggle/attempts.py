"""Requests that must reach Kaggle at most once: submissions and kernel pushes.

After a lost answer (5xx, reset, timeout, unreadable answer) it is unknown whether the request took effect. Such a
request is never repeated; Kaggle's lists are polled for its effect instead, for longer than they lag behind.
"""

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from competition.config.errors import UserError
from competition.kaggle.client import Client, wait_before_retry
from competition.kaggle.errors import REFUSED_SUBMISSIONS, RETRYABLE, KaggleError

T = TypeVar("T")
# Failure kinds in which Kaggle's answer shows that the request had no effect.
NO_EFFECT = {"rate", "credentials", "rules", "phone", "access", "missing", "upload", "push", "dataset"}
NO_EFFECT |= set(REFUSED_SUBMISSIONS)
LONGEST_PAUSE = 15.0  # seconds between two requests for a list


class UnknownOutcome(UserError):
    """It is unknown whether Kaggle accepted a request; the user decides whether it is sent again."""


class LostAnswer(Exception):
    """The answer to a request is missing, so that it may have taken effect. The message is the reason."""


def send_at_most_once(client: Client, send: Callable[[], T], was_not_sent: Callable[[KaggleError], bool]) -> T:
    """Return the value of `send`, which is called again only after an error by which it certainly had no effect.

    was_not_sent: says so of errors that do not show it by themselves.
    Raises LostAnswer and KaggleError.
    """
    for attempt in itertools.count(1):
        try:
            return send()
        except KaggleError as error:
            # 408 may have had an effect: a gateway sends it when a reply is lost.
            is_refused = error.kind in NO_EFFECT or (400 <= error.status < 500 and error.status != 408)
            if not is_refused and not was_not_sent(error):
                raise LostAnswer(f"{error.kind}: {error.reason}") from error
            if error.kind in RETRYABLE | {"upload"} and wait_before_retry(client, attempt, error):
                continue
            raise
    raise AssertionError("the loop has no end")


def poll(query: Callable[[], T | None], seconds: float, first_pause: float) -> tuple[T | None, str]:
    """Call `query` with growing pauses until it returns a value: (value, ""), or (None, "") if it has not after `seconds`.

    A retryable error counts as None; after any other the result is (None, its sentence).
    """
    until, pause = time.monotonic() + seconds, first_pause
    while True:
        try:
            value = query()
        except KaggleError as error:
            if error.kind not in RETRYABLE:
                return None, str(error).rstrip(".")
            value = None
        remaining = until - time.monotonic()
        if value is not None or remaining <= 0:
            return value, ""
        time.sleep(min(pause, remaining))
        pause = min(pause * 1.5, LONGEST_PAUSE)
