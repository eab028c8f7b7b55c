"""Which parameters hold secrets. The schema marks them (params.SECRET); whatever shows or sends parameters asks here."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import get_type_hints
from urllib.parse import unquote

from competition.config.errors import Key
from competition.config.params import Params
from competition.config.redaction import HIDDEN, redact

SECRET_NAME = re.compile(r"(?i)(password|passwd|secret|token|key)$")  # of a variable or of an option
# (block, key) of each marked parameter.
SECRET_PATHS = [
    (block, key.name)
    for block, block_type in get_type_hints(Params).items()
    if is_dataclass(block_type)
    for key in fields(block_type)
    if key.metadata.get("secret")
]
SHORTEST_VARIABLE = 8  # characters; a shorter value of such a variable is rather a switch


def is_secret(keys: Sequence[Key]) -> bool:
    """Return True if the parameter at these keys, or the one that contains them, is marked as secret."""
    return any(tuple(map(str, keys[: len(path)])) == path for path in SECRET_PATHS)


def without_secrets(params: Params) -> Params:
    """The parameters with every secret empty, as they are sent to other machines and digested for the ledger."""
    for block, key in SECRET_PATHS:
        values = getattr(params, block)
        params = replace(params, **{block: replace(values, **{key: type(getattr(values, key))()})})
    return params


def known_secrets(params: Params | None = None, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The secrets in the parameters and in the variables of the environment, for `redact`."""
    named = [value for name, value in environment.items() if SECRET_NAME.search(name)]
    known = [value for value in named if len(value) >= SHORTEST_VARIABLE]
    for block, key in SECRET_PATHS if params else ():
        value = getattr(getattr(params, block), key)
        for text in (value,) if isinstance(value, str) else value:
            known += secrets_of(text)
    return tuple(known)


def secrets_of(text: str) -> tuple[str, ...]:
    """The password of a URL, also decoded, or the value of an option such as --db_password=...; () without one."""
    login = text.partition("://")[2].rpartition("@")[0]
    name, _, value = text.partition("=")
    password = login.partition(":")[2] or (value if SECRET_NAME.search(name) else "")
    return tuple({password, unquote(password)}) if password else ()


def public_sets(sets: str) -> str:
    """SET with HIDDEN in place of each secret value. What cannot be read is hidden as a whole."""
    try:
        words = [word.partition("=") for word in words_of_set(sets)]
    except ValueError:
        return HIDDEN
    public = [
        f"{key}={HIDDEN}" if is_secret(key.split(".")) or redact(value) != value else f"{key}{equals}{value}"
        for key, equals, value in words
    ]
    return sets if public == ["".join(word) for word in words] else shlex.join(public)


def words_of_set(sets: str) -> list[str]:
    """The key.path=value words of SET, split as by a shell; a value that begins with [ or { ends where the bracket closes.

    So `predict.views=[identity, flip_lr]` needs no second pair of quotes.  Raises ValueError for an open quote.
    """
    words: list[str] = []
    depth = 0  # of open brackets
    for part in shlex.split(sets):
        if depth > 0:
            words[-1] += f" {part}"
        else:
            words.append(part)
        value = words[-1].partition("=")[2]
        depth = sum(value.count(sign) for sign in "[{") - sum(value.count(sign) for sign in "]}")
        if not value.startswith(("[", "{")):
            depth = 0
    return words
