"""Validation of a parameter tree: keys, types and ranges by pydantic, then the rules between keys (rules.py)."""

import json
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from competition.config.errors import InvalidParameter, Key, did_you_mean
from competition.config.params import REMOVED_FROM_TRAIN, RENAMED_KEYS, Member, Params
from competition.config.rules import check_rules
from competition.config.secrets import is_secret
from competition.config.yaml_text import Tree, kind

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

LARGEST_TUNED = 2  # folds of tune.folds, where the parameters do not state them
MISSING = "missing"


def validate(tree: Tree) -> Params:
    """Convert a merged parameter tree to `Params`. `tree` is modified. Raises InvalidParameter."""
    # Members with `predictions` go to `foreign`, a key that parameter files must not contain.
    if "foreign" in tree:
        raise InvalidParameter(
            ("foreign",), "unknown key; a member with external predictions belongs under members, with predictions"
        )
    members, foreign = tree.get("members"), {}
    for name, member in list(members.items()) if isinstance(members, dict) else ():
        if isinstance(member, dict) and "predictions" in member:
            if others := [key for key in member if key != "predictions"]:
                raise InvalidParameter(
                    ("members", name, others[0]),
                    "not allowed together with predictions; a member is either trained here or has external predictions, "
                    "so remove one of the two",
                )
            foreign[name] = tree["members"].pop(name)["predictions"]
    tree["foreign"] = foreign
    _require_text_keys(tree, ())
    _complete(tree)
    try:
        params = TypeAdapter(Params).validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        errors = error.errors()
        # The first unknown key, else the first error: a misspelt key also causes errors about the key it replaces.
        raise _explained(next((e for e in errors if e["type"] == "unexpected_keyword_argument"), errors[0])) from None
    if not params.tune.folds:
        # With two folds none would remain, and () stays: `make tune` then says that it does nothing.
        count = min(LARGEST_TUNED, params.prepare.folds - 1)
        params = replace(params, tune=replace(params.tune, folds=tuple(range(count)) if count >= 2 else ()))
    check_rules(params)
    return params


def _require_text_keys(tree: object, keys: tuple[Key, ...]) -> None:
    """Reject keys such as 7 or true, which JSON would turn into text silently."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if not isinstance(key, str):
            raise InvalidParameter((*keys, key), f"the name {key!r} is not text; write it in quotes")
        _require_text_keys(value, (*keys, key))


def _complete(tree: Tree) -> None:
    """Fill in each member's `train` from the common one, and what it needs from cluster.needs.

    Values of a wrong type are left for pydantic to report.
    """
    members, common, cluster = tree.get("members"), tree.get("train"), tree.get("cluster")
    if isinstance(members, dict) and isinstance(common, dict):
        for member in members.values():
            if isinstance(member, dict) and isinstance(member.get("train", {}), dict):
                member["train"] = {**common, **member.get("train", {})}
    if (
        isinstance(cluster, dict)
        and isinstance(cluster.get("needs"), dict)
        and isinstance(cluster.get("members"), dict)
    ):
        for name, needs in cluster["members"].items():
            cluster["members"][name] = {**cluster["needs"], **needs} if isinstance(needs, dict) else needs


def _explained(error: "ErrorDetails") -> InvalidParameter:
    """Convert one error of pydantic."""
    keys = [key for key in error["loc"] if key != "[key]"]
    if error["type"] == "unexpected_keyword_argument":
        if new_key := RENAMED_KEYS.get(".".join(map(str, keys[-2:]))):
            return InvalidParameter(keys, f"renamed; write {new_key}")
        name = str(keys[-1])
        if name in REMOVED_FROM_TRAIN and keys[-2:-1] == ["train"]:
            return InvalidParameter(keys, "this parameter was removed; remove the line")
        blocks = {block: schema for block, schema in get_type_hints(Params).items() if is_dataclass(schema)}
        blocks["members.NAME"] = Member
        elsewhere = [f"{block}.{name}" for block, schema in blocks.items() if name in {f.name for f in fields(schema)}]
        hint = f"; did you mean '{elsewhere[0]}'?" if len(elsewhere) == 1 else did_you_mean(name, _sibling_keys(keys))
        return InvalidParameter(keys, f"unknown key{hint}")
    if error["type"] in ("missing", "missing_argument"):
        return InvalidParameter(keys, MISSING)
    if error["type"] in ("dataclass_type", "dict_type"):
        return InvalidParameter(keys, f"{kind(error['input'])} was found; a block of keys was expected")
    expected, hint = error["msg"][0].lower() + error["msg"][1:], ""
    if error["type"] == "literal_error":
        hint = did_you_mean(str(error["input"]), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    elif error["type"] == "string_pattern_mismatch":
        expected = "a name of letters, digits, '.', '_' and '-' was expected"
    value = "a value" if is_secret(keys) else json.dumps(error["input"], default=str)[:80]
    return InvalidParameter(keys, f"{value} was found; {expected}{hint}")


def _sibling_keys(keys: Sequence[Key]) -> list[str]:
    """The valid keys of the block that contains the last of `keys`."""
    block: Any = Params
    for key in keys[:-1]:
        block = get_args(block)[1] if get_origin(block) is dict else get_type_hints(block)[str(key)]
    names = [field.name for field in fields(block)]
    if block is Member:
        return [*names, "predictions"]  # of an external member (`validate`)
    return [name for name in names if name != "foreign"] if block is Params else names
