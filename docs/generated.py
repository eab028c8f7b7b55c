"""The pages of the site that are generated from the source, so that they cannot fall behind it.

reference/parameters.md from params.yaml and its schema; reference/verbs.md from the command line.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


# ----- parameters

ENTRY = re.compile(r"^(?P<indent> *)(?P<key>[a-z_0-9]+):(?P<value>[^#\n]*?)\s*(?:#\s?(?P<comment>.*))?$")
CONTINUED = re.compile(r"^\s{20,}#\s?(?P<comment>.*)$")


def parameters_page() -> str:
    """One table for each block of params.yaml: default, allowed values, meaning and unit."""
    lines = [
        "# Parameters",
        "",
        "Generated from `params.yaml`, which states the defaults and explains every key, and from its schema, which checks types and",
        'ranges before anything is downloaded or trained. An unknown key is an error with a suggestion. `SET="block.key=value"`',
        "overrides a value for one run.",
    ]
    schema, block = schema_of_blocks(), ""
    for name, entries in blocks_of((ROOT / "params.yaml").read_text(encoding="utf-8")).items():
        if not entries or name == "members":
            continue
        block = name
        lines += ["", f"## {block}", "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        for key, default, comment in entries:
            lines.append(f"| `{key}` | `{default or ' '}` | {schema[block].get(key, '')} | {_cell(comment)} |")
    lines += [
        "",
        "## members",
        "",
        "A member is a name with these keys; its own `train:` overrides the block above.",
        "",
        "| key | default | allowed |",
        "|---|---|---|",
    ]
    lines += [f"| `{key}` | {default} | {allowed} |" for key, default, allowed in member_keys()]
    return "\n".join(lines) + "\n"


def blocks_of(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """Block -> (key, default, comment) of its direct keys; the keys without a block are under "general"."""
    blocks: dict[str, list[tuple[str, str, str]]] = {"general": []}
    block = "general"
    for line in text.splitlines():
        if (more := CONTINUED.match(line)) and blocks[block]:
            key, default, comment = blocks[block][-1]
            blocks[block][-1] = (key, default, f"{comment} {more['comment'].strip()}")
            continue
        entry = ENTRY.match(line)
        if entry is None:
            continue
        value = entry["value"].strip()
        if not entry["indent"] and not value:
            block = entry["key"]
            blocks[block] = []
        elif len(entry["indent"]) == (0 if block == "general" else 2):
            blocks[block].append((entry["key"], value, (entry["comment"] or "").strip()))
    return blocks


def schema_of_blocks() -> dict[str, dict[str, str]]:
    """Block -> key -> allowed values, as text."""
    from competition.config.params import Params

    result: dict[str, dict[str, str]] = {"general": {}}
    for name, kind in typing.get_type_hints(Params, include_extras=True).items():
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind, include_extras=True)
            result[name] = {key: allowed(hint) for key, hint in hints.items()}
        else:
            result["general"][name] = allowed(kind)
    return result


def member_keys() -> Iterator[tuple[str, str, str]]:
    from competition.config.params import Member

    hints = typing.get_type_hints(Member, include_extras=True)
    for field in dataclasses.fields(Member):
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default}`"
        yield field.name, default, "the keys of `train`" if field.name == "train" else allowed(hints[field.name])


def allowed(hint: Any) -> str:
    """A type of the schema as text: "integer, 1 or more", "`auto`, `none`", "number, 0 to 1"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return (allowed(arguments[0]) + limits(arguments[1:])).strip()
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" if value != "" else '`""`' for value in arguments)
    if origin in (tuple, list):
        return f"list of: {allowed(arguments[0])}"
    if origin is dict:
        return f"mapping of names to: {allowed(arguments[1])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(allowed(argument) for argument in arguments)
    if dataclasses.is_dataclass(hint):
        return "keys: " + ", ".join(f"`{field.name}`" for field in dataclasses.fields(hint))
    return {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )


def limits(metadata: Any) -> str:
    """The ranges in a pydantic Field, as text."""
    bounds: dict[str, Any] = {}
    for field in metadata:
        for part in getattr(field, "metadata", []):
            bounds |= {
                name: getattr(part, name) for name in ("ge", "gt", "le", "lt", "min_length") if hasattr(part, name)
            }
    parts = []
    if "ge" in bounds and "le" in bounds and bounds["le"] < 2**31 - 1:
        parts.append(f"{bounds['ge']:g} to {bounds['le']:g}")
    elif "ge" in bounds:
        parts.append(f"{bounds['ge']:g} or more")
    if "gt" in bounds:
        parts.append(f"above {bounds['gt']:g}")
    if "lt" in bounds:
        parts.append(f"below {bounds['lt']:g}")
    if "le" in bounds and "ge" not in bounds:
        parts.append(f"at most {bounds['le']:g}")
    if "min_length" in bounds:
        parts.append(f"{bounds['min_length']} or more entries")
    return f", {', '.join(parts)}" if parts else ""


# ----- verbs


def verbs_page() -> str:
    """Every verb of `goldfold` with its options, and every target of make."""
    from pipelines.terminal.verbs import COMMON, VERBS

    lines = [
        "# Verbs",
        "",
        "Generated from the command line. `make VERB` runs `goldfold VERB` and keeps the order of the verbs.",
        "",
    ]
    lines += ["## make", "", "| target | what it does |", "|---|---|"]
    targets = re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    lines += [f"| `make {name}` | {_cell(text)} |" for name, text in targets]
    lines += ["", "## Options of every verb", "", "| option | meaning |", "|---|---|"]
    lines += [_option(name) for name in COMMON]
    lines += ["", "## goldfold"]
    for name, verb in VERBS.items():
        lines += ["", f"### goldfold {name}", "", verb.help]
        if verb.options:
            lines += ["", "| option | meaning |", "|---|---|", *(_option(option) for option in verb.options)]
    return "\n".join(lines) + "\n"


def _option(name: str) -> str:
    from pipelines.terminal.options import FIELDS, flag_of

    return f"| `{flag_of(name)}` | {_cell(FIELDS[name].metadata['help'])} |"


def _cell(text: str) -> str:
    """Text for a cell of a table or an item of a list, with Markdown's characters escaped outside of code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    escaped = [part if part.startswith("`") else re.sub(r"([*_\[\]<>#])", r"\\\1", part) for part in parts]
    return "".join(escaped).replace("|", "\\|")
