"""Errors of Kaggle: convert an HTTP answer or a client error to one sentence with its fix."""

import contextlib
import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from competition.config.errors import UserError
from competition.config.redaction import printable, redact
from competition.files.child_process import Event
from competition.kaggle import answers
from competition.kaggle.credentials import SETTINGS_URL, Credential

SITE = "https://www.kaggle.com"
# Kinds of failures that may be temporary: client.ask repeats the call.
RETRYABLE = {"rate", "server", "connection", "stalled", "damaged", "answer", "expired"}
YEAR = 366 * 86400.0  # seconds


# Kind -> pattern of Kaggle's words when it refuses a submission; the first match counts.
REFUSED_SUBMISSIONS = {
    "notebooks": r"only .*(notebook|kernel)|(notebook|kernel)s? only",
    "daily": r"submission.*(daily|per day|\ba day|today|tomorrow)|(daily|today).*submission",
    "total": r"(total|lifetime|maximum|used (up )?all).*submission|submission.*(total|lifetime|maximum|used (up )?all)",
    "closed": r"(competition|submission|deadline).*(\bended|\bover\b|closed|passed|no longer|not open|disabled|finished)",
}


# Kind -> message for the user.
SENTENCES = {
    "rules": "the rules of {slug} are not accepted yet: accept them at {site}/competitions/{slug}/rules, then run "
    "this again (only you can).",
    "phone": "Kaggle requires a verified phone number ({reason}): verify it at {settings}, then run this again.",
    "access": "Kaggle does not let this account see {slug} ({reason}): check the spelling (the last part "
    "of the link), and that it is yours or that you have joined.",
    "missing": "Kaggle knows no {slug} ({reason}): check the spelling; the name is the last part of the link.",
    "absent": "Kaggle lists this file of {slug}, but {reason}: it may just be replaced, run this again later; if it stays "
    "so, tell the host of the competition.",
    "daily": "no submission to {slug} is left today ({reason}): Kaggle counts days in UTC; nothing was submitted, submit it "
    "after midnight UTC.",
    "total": "no submission to {slug} is left ({reason}): the competition limits their total number, a new day adds none; "
    "nothing was submitted.",
    "closed": "{slug} takes no submissions any more ({reason}): nothing was submitted.",
    "credentials": "Kaggle does not accept the credential from {source} ({reason}): make a token at "
    "{settings}, or unset the old one.",
    "rate": "Kaggle refuses more requests for now{after} ({reason}): {again}.",
    "server": "Kaggle's server failed{after} ({reason}): {again}.",
    "expired": "the link that Kaggle gave for {slug} had expired{after} ({reason}): {again}.",
    "connection": "the connection to Kaggle failed{after} ({reason}): check the network, then run this again.",
    "stalled": "Kaggle stopped answering{after} ({reason}): {again}.",
    "answer": "Kaggle's answer could not be understood{after} ({reason}): is a login page or a proxy in between?",
    "page": "{reason}: a login page or a proxy may be in between; log in at {site}, check the credential from "
    "{source}, then run this again.",
    "damaged": "the download from Kaggle is damaged{after} ({reason}): run this again.",
    "disk": "the download could not be written to disk ({reason}): free disk space, then run this again.",
    "upload": "the upload to {slug} was refused ({reason}): nothing was submitted; run this again.",
    "notebooks": "{slug} takes submissions from Kaggle notebooks only ({reason}): set kaggle.submit to notebook, "
    "then `make kernel submit`; nothing was submitted.",
    "dataset": "Kaggle rejected the dataset {slug}: {reason}.",
    "name": "the output of {slug} was rejected as a whole: {reason}.",
}


class KaggleError(UserError):
    """Error of a call to Kaggle; its message is one sentence.

    kind: rules, phone, access, missing, absent, credentials, rate, server, connection, expired, stalled, answer, page,
    damaged, disk, upload, notebooks, daily, total, closed, push, sources, dataset, name, interrupted or client.
    retry_after: seconds that Kaggle asks to wait.  status: of HTTP, 0 = none.
    reason: short description without advice, for the line that announces a retry.
    """

    def __init__(
        self, kind: str, sentence: str, retry_after: float | None = None, status: int = 0, reason: str = ""
    ) -> None:
        super().__init__(sentence)
        self.kind, self.retry_after, self.status, self.reason = kind, retry_after, status, reason or sentence


def retry_after_seconds(header: str | None) -> float | None:
    """Seconds from a Retry-After header: a number of seconds or an HTTP date (RFC 9110, section 10.2.3), at most a year.

    None if there is none, or if it is neither, e.g. "inf".
    """
    seconds = answers.decimal(header)
    if seconds is None and header:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            date = parsedate_to_datetime(header)
            seconds = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return None if seconds is None else min(max(0.0, seconds), YEAR)


def retry_time_text(seconds: float) -> str:
    """Time of the next attempt, e.g. "in 15 minutes, after 14:32 UTC"."""
    minutes = -(-seconds // 60)
    amount = f"{seconds:.0f} s" if seconds < 120 else f"{minutes:.0f} minutes"
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return f"in {amount}, after {moment:{'%H:%M' if seconds < 43200 else '%Y-%m-%d %H:%M'}} UTC"


def error_from_event(event: Event, action: str, slug: str, credential: Credential, tries: int) -> KaggleError:
    """Error described by the "error" event of the child process, with a message for the user.

    action: of child.py, or the method of a call.  slug: of the competition, kernel or dataset.  tries: number of attempts.
    """
    status, wait = int(event.get("status", 0)), retry_after_seconds(event.get("retry_after"))
    # Redacted before it is cut: a cut secret would not be recognised.
    message = printable(redact(" ".join(str(event.get("message", "")).split()), credential.secrets))[:500]
    kind, reason = _http_failure(status, message, action) if event["kind"] == "http" else (event["kind"], message)
    reason = reason.rstrip(".")
    after = f" after {tries} tries" if tries > 1 else ""
    again = "run this again later; it goes on where it stopped"
    if wait:
        again = f"run this again {retry_time_text(wait)}, as Kaggle asks; it goes on where it stopped"
    texts = {"slug": slug, "reason": reason, "after": after, "again": again, "source": credential.source}
    sentence = SENTENCES.get(kind, f"the Kaggle client failed at {action} of {{slug}}: {{reason}}.")
    sentence = sentence.format(site=SITE, settings=SETTINGS_URL, **texts)
    return KaggleError(kind, sentence, wait, status, reason)


def _http_failure(status: int, message: str, action: str) -> tuple[str, str]:
    """Kind and reason of an answer with an HTTP status above 400."""
    message = re.sub(r"^\d{3} (Client|Server) Error: ", "", message)
    lower = message.lower()
    if status == 429 or status >= 500:
        return "rate" if status == 429 else "server", f"status {status} {message}".strip()
    if status in (400, 403) and "rule" not in lower and action in ("submit", "CreateCodeSubmission"):
        for kind, pattern in REFUSED_SUBMISSIONS.items():
            if re.search(pattern, lower):
                return kind, message
    if status == 403:
        return "rules" if "rule" in lower else "phone" if "phone" in lower or "verif" in lower else "access", message
    return {401: "credentials", 404: "missing"}.get(status, "client"), f"{status} {message}".strip()
