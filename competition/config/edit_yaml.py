"""Set values in the text of a YAML file: comments, order and formatting of everything else stay as they are."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from competition.config.errors import UserError
from competition.config.yaml_text import composed

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*")
NOT_TEXT = {"true", "false", "null", "yes", "no", "on", "off"}


def set_value(text: str, keys: Sequence[str], value: Any) -> str:
    """Return `text` with the value of `keys`, one mapping inside the other; missing keys are added.

    Raises UserError where the present value spans several lines of block style, which is not edited.
    """
    parent, missing = composed(text), list(keys)
    while missing:
        child = _child(parent, missing[0])
        if child is None:
            for key in reversed(missing[1:]):
                value = {key: value}
            return _inserted(text, parent, missing[0], value)
        parent = child
        missing.pop(0)
    if parent.id != "scalar" and not parent.flow_style:
        raise UserError(f"{'.'.join(keys)}: a value of several lines is not edited; write it as {rendered(value)}")
    return text[: parent.start_mark.index] + rendered(value) + text[parent.end_mark.index :]


def rendered(value: Any) -> str:
    """A plain value in one line of YAML 1.2."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{rendered(key)}: {rendered(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(rendered, value)) + "]"
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in NOT_TEXT:
        return value
    return json.dumps(value)


def _child(node: Any, key: str) -> Any:
    """The value of `key` in a mapping node, or None."""
    if node.id != "mapping":
        raise UserError(f"{key}: a mapping was expected around it, another value was found")
    return next((child for name, child in node.value if name.value == key), None)


def _inserted(text: str, parent: Any, key: str, value: Any) -> str:
    """Add `key: value` at the end of a mapping, in its style."""
    entry = f"{rendered(key)}: {rendered(value)}"
    if parent.flow_style:
        at = parent.value[-1][1].end_mark.index if parent.value else parent.end_mark.index - 1
        return text[:at] + (", " if parent.value else "") + entry + text[at:]
    indent = " " * parent.value[0][0].start_mark.column
    end = text.find("\n", _last_scalar(parent).end_mark.index)
    before, after = (text, "") if end < 0 else (text[: end + 1], text[end + 1 :])
    return before + ("" if before.endswith("\n") else "\n") + f"{indent}{entry}\n" + after


def _last_scalar(node: Any) -> Any:
    """The node that ends last among a node's own lines."""
    while node.id != "scalar" and not node.flow_style and node.value:
        node = node.value[-1][1] if node.id == "mapping" else node.value[-1]
    return node
