"""Text that may hold a secret, or that came from outside, before it is shown or stored."""

import base64
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

HIDDEN = "[hidden]"
SHORTEST = 4  # characters of a secret that is looked for; a shorter one would match in ordinary words

# Each pattern keeps its first group and hides the rest.
PATTERNS = (
    # Authorization: Basic ..., 'Authorization': 'Bearer ...', X-Kaggle-Authorization: ...
    re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*(?:b?['\"])?+(?:(?:basic|bearer|token)\s+)?+)[^\s'\",}]+"),
    re.compile(r"(?i)(\b(?:basic|bearer)\s+)[a-z0-9._~+/=\\-]{8,}"),
    # query parameters of a signed link
    re.compile(
        r"(?i)([?&;](?:x-goog-[a-z-]+|x-amz-[a-z-]+|signature|sig|googleaccessid|expires|token|access_token|key|password)=)"
        r"[^&\s'\"<>]+"
    ),
    # KAGGLE_KEY=..., "key": "...", api_token = ...
    re.compile(
        r"(?i)(\b(?:kaggle_key|kaggle_api_token|kaggle_token|kaggle_user_secrets_token|(?:wandb_)?api_key"
        r"|(?:api|access|refresh)[_-]?token"
        r"|password)\b['\"]?\s*[:=]\s*['\"]?)[^\s'\",}]+"
    ),
    re.compile(r"(?i)(['\"]key['\"]\s*:\s*['\"])[^'\"]+"),
    # token formats of Kaggle, Google, GitHub and Hugging Face, whose token may be in a file that we do not read
    re.compile(
        r"\b()(?:KGAT_[A-Za-z0-9_-]{8,}|ya29\.[A-Za-z0-9._-]{8,}|gh[pousr]_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,})"
    ),
    # user:password@ in a link; a password may contain "/" and "@"
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)(?!user:password@)[^/\s:@'\"]*:[^\s'\"]+(?=@)"),
)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Replace secrets in `text` by HIDDEN: strings that match PATTERNS, and the `known` secrets in every form."""
    text = hide(text, known)
    for pattern in PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def hide(text: str, known: Iterable[str]) -> str:
    """Replace the `known` secrets (a token, a key, "user:key") by HIDDEN, in every form in which a program prints them.

    The forms: plain; escaped as by repr, JSON, HTML or in a URL; base64 and hexadecimal, also as a part of a longer text;
    each of them may be broken into lines.
    """
    return _pattern_of(tuple(known)).sub(HIDDEN, text)


@cache
def _pattern_of(known: tuple[str, ...]) -> re.Pattern[str]:
    """What matches each of the secrets in every form; nothing without secrets."""
    pieces = {piece for secret in known for piece in (secret, *secret.split("\n")) if len(piece) >= SHORTEST}
    forms = {form for piece in pieces for form in (piece, *_encoded(piece))}
    line_break = r"(?:[ \t]*(?:[\r\n]|\\+[rn])+[ \t]*)?"
    patterns = [line_break.join(map(_character_pattern, form)) for form in sorted(forms, key=len, reverse=True)]
    return re.compile("|".join(patterns) or "(?!)")


def _encoded(secret: str) -> Iterator[str]:
    """The secret in base64 and hexadecimal; what base64 makes of it inside a longer text depends on its position there."""
    data = secret.encode()
    yield from (data.hex(), data.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode()
        for before, mixed in ((0, 0), (1, 2), (2, 3)):  # bytes before it; characters that depend on them as well
            text = encode(b"\0" * before + data).decode().rstrip("=")
            inner = text[mixed : len(text) - bool((before + len(data)) % 3)]
            if len(inner) >= 2 * SHORTEST:
                yield inner


def _character_pattern(character: str) -> str:
    """Regular expression of one character, plain or escaped."""
    plain = rf"\\*{re.escape(character)}"
    code, escape = ord(character), repr(character)[1:-1].lstrip("\\")
    percent = "".join(f"%{byte:02x}" for byte in character.encode())
    forms = [percent, rf"\\+(?:x{code:02x}|u{code:04x}|U{code:08x})", f"&#(?:0*{code}|x0*{code:x});"]
    entities = {"&": "amp", "<": "lt", ">": "gt", '"': "quot"}
    forms += [rf"&{entities[character]};"] if character in entities else []
    forms += [r"\+"] if character == " " else []
    forms += [rf"\\+{escape}"] if escape in ("n", "r", "t") and not character.isprintable() else []
    return f"(?:{plain}|(?i:{'|'.join(forms)}))"


def redacted_answer(value: Any, known: Sequence[str]) -> Any:
    """The answer of a server with the `known` secrets hidden and every text on one line without control characters.

    value: as of JSON. Keys keep their control characters: names of files are looked up by them.
    """
    if isinstance(value, str):
        return printable(hide(value, known))
    if isinstance(value, list):
        return [redacted_answer(item, known) for item in value]
    if isinstance(value, dict):
        return {hide(key, known): redacted_answer(item, known) for key, item in value.items()}
    return value


def printable(text: str, keep: str = "") -> str:
    """The text on one line: line breaks become blanks, other control characters "?".

    Otherwise a title, a name or a message from outside could move the cursor, colour what follows it, or look like a line
    of goldfold's own. keep: control characters that stay, e.g. line breaks.
    """
    if text.isprintable():
        return text
    # Control characters, formats such as a change of direction, surrogates, line and paragraph separators.
    replaced = {each for each in {*text} - {*keep} if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    return text.translate({ord(each): " " if each.isspace() else "?" for each in replaced})
