"""YAML 1.2 as plain values: bounded size, aliases included; no tags, no duplicate keys; the line of every key.

Values are set in the text of a file, so that comments, order and formatting of everything else stay as they are.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from competition.config.digests import to_plain
from competition.config.errors import Key, UserError, did_you_mean

if TYPE_CHECKING:  # ruamel is imported where a text is read
    from ruamel.yaml import YAML

Tree = dict[str, Any]  # the plain values of a file: block -> key -> value

LARGEST_FILE = 1_000_000  # bytes; a parameter file has a few hundred lines
MOST_VALUES = 100_000  # keys and values, each alias counted with all that it stands for
TEXT_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "merge", "timestamp")}  # a date stays a text
PLAIN_TAGS = {*TEXT_TAGS, *(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "int", "float", "bool", "null"))}
# A text that is written without quotes, unless it is one of NOT_TEXT.
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*")
NOT_TEXT = {"true", "false", "null", "yes", "no", "on", "off"}


def read_yaml(path: Path) -> Tree:
    """Return the mapping in a file. Raises UserError with the file and, if known, the line."""
    tree = parse_yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise UserError(f"{path}: a mapping of blocks (competition:, train:, ...) was expected, {kind(tree)} was found")
    return tree


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file of at most LARGEST_FILE bytes. Raises UserError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        files = [file.as_posix() for folder in (path.parent, Path("recipes")) for file in folder.glob("*.y*ml")]
        meant = did_you_mean(path.as_posix(), files)
        raise UserError(f"{path}: {error.strerror}; PARAMS=FILE names the parameters to use{meant}") from None
    if len(data) > LARGEST_FILE:
        raise UserError(f"{path}: {len(data):,} bytes were found, at most {LARGEST_FILE:,} are read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def parse_yaml(text: str, where: str) -> Any:
    """Return the plain values (dict, list, str, int, float, bool, None) of one document.

    Raises UserError, whose message begins with `where`.
    """
    return json.loads(_json_of(text, where))  # each caller gets a copy of its own


@lru_cache(maxsize=32)  # params.yaml is the base of most files
def _json_of(text: str, where: str) -> str:
    """The document as JSON, where each alias is written out: a change of one place must not change the others."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = _yaml()
    try:
        node = yaml.compose(text)
        if node is None:
            return "null"
        _check(node, where)
        return json.dumps(yaml.constructor.construct_document(node))
    except UserError:
        raise
    except MarkedYAMLError as error:
        is_open = "<stream end>" in (error.problem or "") and error.context_mark  # the mark of its beginning
        mark = error.context_mark if is_open else error.problem_mark
        line = f" line {mark.line + 1}" if mark else ""
        problem = " ".join((error.problem or str(error)).split()).partition(" with value")[0]  # of a duplicate key
        remedy = (
            "close the bracket or the quote"
            if is_open
            else "put a text that contains blanks or special characters in quotes"
        )
        raise UserError(f"{where}{line}: {problem}; expected YAML 1.2 ({remedy})") from None
    except RecursionError:
        raise UserError(f"{where}: too many nested blocks; params.yaml shows the form") from None
    except (YAMLError, ValueError) as error:
        raise UserError(f"{where}: {' '.join(str(error).split())}; expected YAML 1.2") from None


def _check(root: Any, where: str) -> None:
    """Refuse nodes before values are made of them: aliases let a few bytes stand for gigabytes, tags name foreign types."""
    nodes = [(root, False)]  # (node, whether it is a key), each alias with all that it stands for
    for node, is_key in nodes:  # the list grows while it is read
        problem = ""
        if is_key and node.tag not in TEXT_TAGS:
            name = node.value if node.id == "scalar" else f"of a {node.id}"
            problem = f"the name {name} is not text; write it in quotes"
        elif node.tag not in PLAIN_TAGS:
            problem = f"the YAML tag {node.tag} is not supported; write the plain value"
        elif len(nodes) > MOST_VALUES:
            problem = f"more than {MOST_VALUES:,} values with aliases written out; use fewer aliases"
        if problem:
            raise UserError(f"{where} line {node.start_mark.line + 1}: {problem}")
        if node.id == "mapping":
            nodes += [pair for key, value in node.value for pair in ((key, True), (value, False))]
        elif node.id == "sequence":
            nodes += [(value, False) for value in node.value]


def _yaml() -> "YAML":
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    # YAML 1.2 has no dates: 2020-01-01 is a text.
    yaml.constructor.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
    return yaml


def line_of(text: str, keys: Sequence[Key]) -> tuple[int, int]:
    """Return how many of `keys` the document contains, one inside the other, and the line of the last of these, from 1."""
    node, depth, line = _yaml().compose(text), 0, 1
    for key in keys:
        mark = None
        if isinstance(key, int) and isinstance(node.value, list) and node.id == "sequence" and key < len(node.value):
            node = node.value[key]
            mark = node.start_mark
        elif node.id == "mapping":
            for name, value in node.value:
                if name.value == str(key):
                    node, mark = value, name.start_mark
        if mark is None:
            break
        depth, line = depth + 1, mark.line + 1
    return depth, line


def kind(value: object) -> str:
    """Name the kind of a plain value for a message: 'a mapping', 'a list', 'a text', 'nothing' or the value itself."""
    names: Mapping[type, str] = {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"{value!r}")


def set_value(text: str, keys: Sequence[str], value: object) -> str:
    """Return `text` with the value of `keys`, one mapping inside the other; missing keys are added.

    Comments, order, quotes and the indentation of its first block stay.
    """
    from ruamel.yaml import YAML

    editor, first = YAML(), re.search(r"^( +)\w", text, re.MULTILINE)
    indent = len(first[1]) if first else 2
    editor.preserve_quotes, editor.width = True, LARGEST_FILE
    editor.indent(mapping=indent, sequence=indent + 2, offset=indent)
    block = tree = editor.load(text)
    editor.default_flow_style = None  # a new list, and a new mapping without others in it, is written in one line
    for key in keys[:-1]:
        block = block.setdefault(key, {})
        if not isinstance(block, dict):
            raise UserError(f"{key}: a mapping was expected, another value was found")
    block[keys[-1]] = to_plain(value)
    written = StringIO()
    editor.dump(tree, written)
    start = text[: len(text) - len(text.lstrip())]  # empty lines, of which one would be lost
    return start + written.getvalue().lstrip()


def rendered(value: object) -> str:
    """A plain value in one line of YAML 1.2."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{rendered(key)}: {rendered(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(rendered, value)) + "]"
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in NOT_TEXT:
        return value
    return json.dumps(value)
