"""Suggest what an unknown make variable was meant to be. Standard library only: it runs before .venv exists.

python3 pipelines/terminal/make_variables.py EPOCHS params.yaml MEMBER FOLD ... prints SET="train.epochs=VALUE"; for
MEMBERS it prints MEMBER=VALUE, and for an unlike name nothing. The Makefile puts the value in.
"""

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path


def parameter_keys(params: str) -> dict[str, str]:
    """Name of a parameter -> its dotted key, from the text of params.yaml: {"epochs": "train.epochs", ...}.

    Only blocks with fixed keys count: members and foreign have names that the user chooses.
    """
    keys: dict[str, str] = {}
    block = ""
    for line in params.splitlines():
        if top := re.match(r"([a-z_]+):", line):
            block = top[1]
        elif (key := re.match(r"  ([a-z_]+):", line)) and block not in ("members", "foreign"):
            keys.setdefault(key[1], f"{block}.{key[1]}")
    return keys


def suggestion(name: str, variables: Sequence[str], keys: dict[str, str]) -> str:
    """The assignments that `name` probably stands for, with VALUE in place of its value; "" = no similar name."""
    assignments = [f"{variable}=VALUE" for variable in get_close_matches(name.upper(), variables, n=1, cutoff=0.75)]
    spellings = {key.replace(".", "_"): key for key in keys.values()} | keys
    plain = name.lower().replace(".", "_")
    if plain in spellings or not assignments:
        assignments += [
            f'SET="{spellings[key]}=VALUE"' for key in get_close_matches(plain, spellings, n=1, cutoff=0.75)
        ]
    return " or ".join(assignments)


if __name__ == "__main__":
    unknown, params, *variables = sys.argv[1:]
    file = Path(params)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    print(suggestion(unknown, variables, parameter_keys(text)))
