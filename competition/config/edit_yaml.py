"""Set values in the text of a YAML file: comments, order and formatting of everything else stay as they are."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from competition.config.errors import UserError
from competition.config.yaml_text import composed

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*")
NOT_TEXT = {"true", "false", "null", "yes", "no", "on", "off"}


def set_value(text: str, keys: Sequence[str], value: object) -> str:
    """Return `text` with the value of `keys`, one mapping inside the other; missing keys are added.

    Raises UserError where the present value spans several lines of block style, which is not edited.
    """
    parent = composed(text)
    for position, key in enumerate(keys):
        if parent.id != "mapping":
            raise UserError(f"{key}: a mapping was expected around it, another value was found")
        child = next((child for name, child in parent.value if name.value == key), None)
        if child is None:
            for inner in reversed(keys[position + 1 :]):
                value = {inner: value}
            return _inserted(text, parent, key, value)
        parent = child
    if parent.id != "scalar" and not parent.flow_style:
        raise UserError(f"{'.'.join(keys)}: a value of several lines is not edited; write it as {rendered(value)}")
    return text[: parent.start_mark.index] + rendered(value) + text[parent.end_mark.index :]


def rendered(value: object) -> str:
    """A plain value in one line of YAML 1.2."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{rendered(key)}: {rendered(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(rendered, value)) + "]"
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in NOT_TEXT:
        return value
    return json.dumps(value)


def _inserted(text: str, parent: Any, key: str, value: object) -> str:
    """Add `key: value` at the end of a mapping, in its style."""
    entry = f"{rendered(key)}: {rendered(value)}"
    if parent.flow_style:
        at = parent.value[-1][1].end_mark.index if parent.value else parent.end_mark.index - 1
        return text[:at] + (", " if parent.value else "") + entry + text[at:]
    indent = " " * parent.value[0][0].start_mark.column
    last = parent
    while last.id != "scalar" and not last.flow_style and last.value:  # the node that ends last
        last = last.value[-1][1] if last.id == "mapping" else last.value[-1]
    end = text.find("\n", last.end_mark.index)
    before, after = (text, "") if end < 0 else (text[: end + 1], text[end + 1 :])
    return before + ("" if before.endswith("\n") else "\n") + f"{indent}{entry}\n" + after
