"""Errors of Kaggle: convert an HTTP answer or a client error to one sentence with its fix."""

import math
import re
from datetime import UTC, datetime, timedelta

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
    "rules": "the rules of {slug} are not accepted yet: accept them at {site}/competitions/{slug}/rules.",
    "phone": "Kaggle requires a verified phone number ({reason}): verify it at {settings}, then run this again.",
    "access": "Kaggle does not let this account see {slug} ({reason}): check the spelling, and that you have joined.",
    "missing": "Kaggle knows no {slug} ({reason}): check the spelling; the name is the last part of the link.",
    "absent": "Kaggle lists this file of {slug}, but {reason}: run this again later, or tell the host of the competition.",
    "daily": "no submission to {slug} is left today ({reason}): nothing was submitted, submit it after midnight UTC.",
    "total": "no submission to {slug} is left ({reason}): the competition limits their total number; nothing was submitted.",
    "closed": "{slug} takes no submissions any more ({reason}): nothing was submitted.",
    "credentials": "Kaggle does not accept the credential from {source} ({reason}): make a token at {settings}.",
    "rate": "Kaggle refuses more requests for now{after} ({reason}): {again}.",
    "server": "Kaggle's server failed{after} ({reason}): {again}.",
    "expired": "the link that Kaggle gave for {slug} had expired{after} ({reason}): {again}.",
    "connection": "the connection to Kaggle failed{after} ({reason}): check the network, then run this again.",
    "stalled": "Kaggle stopped answering{after} ({reason}): {again}.",
    "answer": "Kaggle's answer could not be understood{after} ({reason}): is a login page or a proxy in between?",
    "page": "{reason}: a login page or a proxy may be in between; check the credential from {source}, then run this again.",
    "damaged": "the download from Kaggle is damaged{after} ({reason}): run this again.",
    "disk": "the download could not be written to disk ({reason}): free disk space, then run this again.",
    "upload": "the upload to {slug} was refused ({reason}): nothing was submitted; run this again.",
    "notebooks": "{slug} takes notebooks only ({reason}): set kaggle.submit to notebook, then `make kernel submit`.",
    "dataset": "Kaggle rejected the dataset {slug}: {reason}.",
    "name": "the output of {slug} was rejected as a whole: {reason}.",
}


class KaggleError(UserError):
    """Error of a call to Kaggle; its message is one sentence.

    kind: rules, phone, access, missing, absent, credentials, rate, server, connection, expired, stalled, answer, page,
    damaged, disk, upload, notebooks, daily, total, closed, push, sources, dataset, name or client.
    retry_after: seconds that Kaggle asks to wait, 0 = unknown.  status: of HTTP, 0 = none.
    reason: short description without advice, for the line that announces a retry.
    """

    def __init__(self, kind: str, sentence: str, retry_after: float = 0.0, status: int = 0, reason: str = "") -> None:
        super().__init__(sentence)
        self.kind, self.retry_after, self.status, self.reason = kind, retry_after, status, reason or sentence


def error_from_event(event: Event, action: str, slug: str, credential: Credential, tries: int) -> KaggleError:
    """Error described by the "error" event of the child process, with a message for the user.

    action: of child_actions.py, or the method of a call.  slug: of the competition, kernel or dataset.  tries: number of attempts.
    """
    status = int(event.get("status", 0))
    wait = min(answers.decimal(event.get("retry_after")) or 0.0, YEAR)  # a Retry-After that is a date is not read
    # Redacted before it is cut: a cut secret would not be recognised.
    message = printable(redact(" ".join(str(event.get("message", "")).split()), credential.secrets))[:500]
    kind, reason = _http_failure(status, message, action) if event["kind"] == "http" else (event["kind"], message)
    reason = reason.rstrip(".")
    after = f" after {tries} tries" if tries > 1 else ""
    moment = datetime.now(UTC) + timedelta(seconds=wait)
    asked = f"in {math.ceil(wait / 60)} minutes, after {moment:%Y-%m-%d %H:%M} UTC, as Kaggle asks"
    again = f"run this again {asked if wait > 0 else 'later'}; it goes on where it stopped"
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
