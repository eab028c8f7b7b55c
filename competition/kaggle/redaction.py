"""No credential leaves: tokens, Authorization headers and signed links are cut out of a text before it is shown."""

import base64
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

HIDDEN = "[hidden]"

# Each pattern keeps its first group and hides the rest.
PATTERNS = (
    # Authorization: Basic ..., 'Authorization': 'Bearer ...', X-Kaggle-Authorization: ...
    re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*(?:b?['\"])?+(?:(?:basic|bearer|token)\s+)?+)[^\s'\",}]+"),
    re.compile(r"(?i)(\b(?:basic|bearer)\s+)[a-z0-9._~+/=-]{8,}"),
    # everything that makes a link a signed one
    re.compile(
        r"(?i)([?&;](?:x-goog-[a-z-]+|x-amz-[a-z-]+|signature|sig|googleaccessid|expires|token|access_token|key)=)"
        r"[^&\s'\"<>]+"
    ),
    # KAGGLE_KEY=..., "key": "...", api_token = ...
    re.compile(
        r"(?i)(\b(?:kaggle_key|kaggle_api_token|kaggle_token|kaggle_user_secrets_token|(?:api|access|refresh)[_-]?token"
        r"|password)\b['\"]?\s*[:=]\s*['\"]?)[^\s'\",}]+"
    ),
    re.compile(r"(?i)(['\"]key['\"]\s*:\s*['\"])[^'\"]+"),
    # tokens as Kaggle, Google and GitHub make them
    re.compile(r"\b()(?:KGAT_[A-Za-z0-9_-]{8,}|ya29\.[A-Za-z0-9._-]{8,}|gh[pousr]_[A-Za-z0-9]{20,})"),
    # user:password@ in a link
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+(?=@)"),
)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """`text` without secrets: those that look like one, and the `known` ones in every form they travel in.

    known: the credentials in use (a token, a key, "user:key"), found plain, base64 and percent-encoded.
    """
    for form in sorted(_forms(known), key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    for pattern in PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def _forms(known: Iterable[str]) -> set[str]:
    forms: set[str] = set()
    for secret in known:
        if len(secret) < 4:  # would hide half of every sentence
            continue
        coded = base64.b64encode(secret.encode()).decode()
        forms |= {secret, coded, coded.rstrip("="), base64.urlsafe_b64encode(secret.encode()).decode()}
        forms |= {quote(secret, safe=""), quote_plus(secret)}
    return forms
