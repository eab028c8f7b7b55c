"""Requests that must reach Kaggle at most once: submissions and kernel pushes.

A lost answer (5xx, reset, timeout, an answer that cannot be read) does not say whether the request took effect, so
such a request is never repeated. Its effect is looked for instead, for longer than Kaggle's lists lag behind.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from competition.config.errors import UserError
from competition.kaggle.client import PASSING, KaggleError, Patience, pause
from competition.kaggle.errors import retry_time_text

T = TypeVar("T")
# Kaggle answered, and the answer says that the request had no effect.
NOT_TAKEN = {"rate", "credentials", "rules", "phone", "access", "missing", "notebooks", "upload", "push", "dataset"}
LONGEST_PAUSE = 15.0  # seconds between two looks at a list


class UnknownOutcome(UserError):
    """It is not known whether Kaggle took a request; the user decides whether it is sent again."""


def was_not_taken(error: KaggleError) -> bool:
    """Return True if the request surely had no effect. 408 is the one 4xx that a gateway may answer for a lost reply."""
    return error.kind in NOT_TAKEN or (400 <= error.status < 500 and error.status != 408)


def lost_reason(error: KaggleError) -> str:
    """Why an answer is missing, in a few words."""
    if error.status:
        return f"Kaggle answered {error.status}"
    reasons = {
        "connection": "the connection broke",
        "stalled": "Kaggle stopped answering",
        "answer": "Kaggle's answer could not be read",
    }
    return reasons.get(error.kind, error.reason.rstrip("."))


def pause_before_retry(patience: Patience, error: KaggleError, attempt: int) -> float | None:
    """Seconds to wait after failed try number `attempt` of a request that was not taken; None to stop trying."""
    return pause(patience, attempt, error.retry_after) if error.kind in PASSING | {"upload"} else None


def with_time_to_return(error: KaggleError, command: str) -> KaggleError:
    """The same error; where Kaggle names a time to wait, the sentence says when `command` can be run again."""
    if error.kind != "rate" or not error.retry_after:
        return error
    sentence = f"Kaggle limits the rate of requests: nothing was sent; run `{command}` again {retry_time_text(error.retry_after)}"
    return KaggleError("rate", f"{sentence}, as Kaggle asks.", error.retry_after, error.status, error.reason)


def look_for(look: Callable[[], T | None], seconds: float, first_pause: float) -> T | None:
    """Call `look` until it returns a value or `seconds` are over, with growing pauses; None if it never did.

    An error that may pass counts as "not seen".
    """
    until, pause = time.monotonic() + seconds, first_pause
    while True:
        try:
            value = look()
        except KaggleError as error:
            if error.kind not in PASSING:
                raise
            value = None
        remaining = until - time.monotonic()
        if value is not None or remaining <= 0:
            return value
        time.sleep(min(pause, remaining))
        pause = min(pause * 1.5, LONGEST_PAUSE)
