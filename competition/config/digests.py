"""Digests of parameters, as sha256 of plain JSON values, and of the definitions that an entry of a plugins file uses."""

import ast
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

# Fields of a syntax tree that do not change what the code does.
IGNORED_FIELDS = ("lineno", "col_offset", "end_lineno", "end_col_offset", "type_comment", "ctx", "kind")
PLAIN_TYPES = {str, int, float, bool, type(None)}


def digest_of(value: object) -> str:
    """Return the sha256 of the canonical JSON of plain values and dataclasses."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def to_plain(value: object) -> Any:
    """Convert dataclasses, mappings, sequences, sets, paths and NumPy scalars to JSON types."""
    # First what there are most of, such as the ids and folds of all images.
    if type(value) in PLAIN_TYPES:
        return value
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [item if type(item) in PLAIN_TYPES else to_plain(item) for item in items]
    if isinstance(value, PathLike):  # Plugins are the path of their file
        return value.as_posix() if isinstance(value, Path) else fspath(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    return value.item() if hasattr(value, "item") else value


def definition_digest(source: str, kind: str, name: str) -> str:
    """Digest of the entry `name` of the dictionary `kind`, and of every top-level definition that it reaches by name.

    So a changed metric invalidates no trained model. Comments, docstrings and formatting do not count. Statements that define
    no name (a loop, an `if`) always count, because they may change anything. Equal on all supported versions of Python.
    """
    statements = [node for node in ast.parse(source).body if not is_docstring(node)]
    defined = [_defined_names(node) for node in statements]
    # The value of the entry, if the dictionary is written once, as a literal; else the whole statement counts.
    written, entry = [node for node, names in zip(statements, defined, strict=True) if kind in names], None
    value = written[0].value if len(written) == 1 and isinstance(written[0], ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
        entry = dict(zip(keys, value.values, strict=True)).get(name) if None not in keys else None
    reached = {number for number, names in enumerate(defined) if not names}
    used_names = {kind} if entry is None else set[str]()
    while True:
        for tree in [*([] if entry is None else [entry]), *(statements[number] for number in reached)]:
            used_names.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        defining = {number for number, names in enumerate(defined) if names & used_names}
        if defining <= reached:
            break
        reached |= defining
    definitions = [_plain(statements[number]) for number in sorted(reached)]
    return digest_of([name, _plain(entry) if entry is not None else "", definitions])


def _defined_names(node: ast.stmt) -> set[str]:
    """Names that a top-level statement defines by a plain definition, assignment or import."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names: set[str] = set()
    for target in targets if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else []:
        for element in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            while isinstance(element, ast.Attribute | ast.Subscript):  # x["y"] = ... changes what x stands for
                element = element.value
            names |= {element.id} if isinstance(element, ast.Name) else set()
    return names


def is_docstring(node: ast.AST) -> bool:
    """Return True for a docstring, or any other text that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _plain(value: object) -> object:
    """A syntax tree as lists and texts. Empty fields are left out, because versions of Python differ in them."""
    if isinstance(value, ast.AST):
        fields = {
            key: _plain(item)
            for key, item in ast.iter_fields(value)
            if key not in IGNORED_FIELDS and item is not None and item != []
        }
        return [type(value).__name__, fields]
    if isinstance(value, list):
        return [_plain(item) for item in value if not is_docstring(item)]
    return value if isinstance(value, str | int | bool) else repr(value)
