"""Remove tokens, Authorization headers and signed links from a text before it is shown."""

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
    # query parameters of a signed link
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
    # token formats of Kaggle, Google and GitHub
    re.compile(r"\b()(?:KGAT_[A-Za-z0-9_-]{8,}|ya29\.[A-Za-z0-9._-]{8,}|gh[pousr]_[A-Za-z0-9]{20,})"),
    # user:password@ in a link
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+(?=@)"),
)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Replace secrets in `text` by HIDDEN: strings that match PATTERNS, and the `known` secrets.

    known: the credentials in use (a token, a key, "user:key"), replaced plain, base64- and percent-encoded.
    """
    for form in sorted(_forms(known), key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    for pattern in PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def _forms(known: Iterable[str]) -> set[str]:
    forms: set[str] = set()
    for secret in known:
        if len(secret) < 4:  # would match in ordinary words
            continue
        coded = base64.b64encode(secret.encode()).decode()
        forms |= {secret, coded, coded.rstrip("="), base64.urlsafe_b64encode(secret.encode()).decode()}
        forms |= {quote(secret, safe=""), quote_plus(secret)}
    return forms
