"""YAML 1.2 as plain values, read with care: no anchors, no tags, no doubled keys, and the line of every key."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from competition.config.errors import UserError

LARGEST_FILE = 1_000_000  # bytes; a params file is a page, not a data set
DEEPEST = 20  # blocks within blocks


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises UserError with the file and, where there is one, the line."""
    tree = parse_yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise UserError(f"{path}: a mapping of blocks (competition:, train:, ...) was expected, {kind(tree)} was found")
    return tree


def read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; PARAMS= names the parameters to use") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); PARAMS= names a file of parameters") from None
    if len(data) > LARGEST_FILE:
        raise UserError(f"{path}: {len(data):,} bytes were found, at most {LARGEST_FILE:,} are read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def parse_yaml(text: str, where: str) -> Any:
    """Plain values (dict, list, str, int, float, bool, None) of one document. `where` opens every user_error."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        _check_events(text, where)
        return _yaml().load(text)
    except UserError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}" if mark else ""
        problem = " ".join((error.problem or str(error)).split())
        if "duplicate key" in problem:
            problem = problem.partition(" with value")[0]
        expected = "expected YAML 1.2 (a text with blanks or special characters stands in quotes)"
        raise UserError(f"{where}{line}: {problem}; {expected}") from None
    except (YAMLError, ValueError) as error:
        raise UserError(f"{where}: {' '.join(str(error).split())}; expected YAML 1.2") from None


def _check_events(text: str, where: str) -> None:
    """Before anything is built of it: anchors let a few bytes stand for gigabytes, tags name foreign types."""
    depth = 0
    for event in _yaml().parse(text):
        name, here = type(event).__name__, f"{where} line {event.start_mark.line + 1}"
        depth += name in ("MappingStartEvent", "SequenceStartEvent")
        depth -= name in ("MappingEndEvent", "SequenceEndEvent")
        if depth > DEEPEST:
            raise UserError(f"{here}: more than {DEEPEST} blocks stand in one another; params.yaml shows the form")
        if getattr(event, "anchor", None):
            raise UserError(
                f"{here}: YAML anchors and aliases (& and *) are not read; write the value out, or quote the text"
            )
        if getattr(event, "ctag", None):
            raise UserError(f"{here}: the YAML tag {event.tag} is not read; write the plain value")


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    # YAML 1.2 knows no dates: 2020-01-01 is a text.
    yaml.constructor.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
    return yaml


def line_of(text: str, keys: Sequence[Any]) -> tuple[int, int]:
    """(how many of `keys` are there, line of the last that is)."""
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


def kind(value: Any) -> str:
    names: Mapping[type, str] = {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"{value!r}")
