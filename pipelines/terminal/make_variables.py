"""What is wrong with the variables or the targets of a make call. Standard library only: it runs before .venv exists.

python3 -m pipelines.terminal.make_variables suggest EPOCHS params.yaml MEMBER FOLD ... prints what an unknown variable was
meant to be: SET="train.epochs=VALUE"; for MEMBERS it prints MEMBER=VALUE, and for an unlike name nothing. The Makefile
puts the value in.
python3 -m pipelines.terminal.make_variables unread "blend report" MEMBER FORCE ... prints the sentence that refuses the
first variable that none of the targets reads.
python3 -m pipelines.terminal.make_variables target trian prints the sentence that refuses a target that the Makefile lacks.
"""

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from pipelines.terminal.options import make_name
from pipelines.terminal.verbs import COMMON, VERBS

EVERY_TARGET = {"BIN", "EXTRA", "PYTHON"}  # read by the Makefile itself
# Targets that are no verbs of the goldfold command -> the variables that they read.
TARGETS = {"benchmarks": {"ONLY", "SOURCE", "TORCH"}, "fuzz": {"FUZZ_SECONDS"}, "soak": {"KILLS"}}


def suggestion(name: str, variables: Sequence[str], params: str) -> str:
    """The assignments that `name` probably stands for, with VALUE in place of its value; "" = no similar name.

    variables: those of make.  params: the text of params.yaml. Only its blocks with fixed keys count: members have names that
    the user chooses.
    """
    keys: dict[str, str] = {}  # name of a parameter -> its dotted key: {"epochs": "train.epochs", ...}
    block = ""
    for line in params.splitlines():
        if top := re.match(r"([a-z_]+):", line):
            block = top[1]
        elif (key := re.match(r"  ([a-z_]+):", line)) and block != "members":
            keys.setdefault(key[1], f"{block}.{key[1]}")
    assignments = [f"{variable}=VALUE" for variable in get_close_matches(name.upper(), variables, n=1, cutoff=0.75)]
    spellings = {dotted.replace(".", "_"): dotted for dotted in keys.values()} | keys
    plain = name.lower().replace(".", "_")
    if plain in spellings or not assignments:
        assignments += [
            f'SET="{spellings[close]}=VALUE"' for close in get_close_matches(plain, spellings, n=1, cutoff=0.75)
        ]
    return " or ".join(assignments)


def makefile_targets() -> list[str]:
    """The targets of the Makefile that are no files."""
    text = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    return [name for line in re.findall(r"^\.PHONY:(.*)$", text, re.MULTILINE) for name in line.split()]


def variables_of(target: str) -> set[str]:
    """The variables that a target of make reads."""
    verb = VERBS.get("kernel-status" if target == "kernel-log" else target)
    options = (*COMMON, *verb.options) if verb else ()
    return {make_name(name) for name in options} | TARGETS.get(target, set()) | EVERY_TARGET


def refusal_of_unread(targets: Sequence[str], given: Sequence[str]) -> str:
    """The sentence on the first given variable that no target reads; "" = each is read."""
    if set(targets) - set(makefile_targets()):  # refused by its own rule
        return ""
    read = set().union(*map(variables_of, targets))
    for name in given:
        if name not in read:
            makes = [target for target in (*VERBS, *TARGETS) if target != "debug"]  # DEBUG=1 is its target in make
            readers = [target for target in makes if name in variables_of(target)]
            verb = "reads" if len(targets) == 1 else "read"
            return f"{name}: not a variable that {' and '.join(targets)} {verb}; it is read by {', '.join(readers)}"
    return ""


if __name__ == "__main__":
    task, subject, *rest = sys.argv[1:]
    if task == "target":
        similar = get_close_matches(subject, makefile_targets(), n=1, cutoff=0.6)
        meant = f", did you mean `make {similar[0]}`?" if similar else ";"
        print(f"make {subject}: no such verb{meant} `make help-all` lists every one", file=sys.stderr)
    elif task == "unread":
        print(refusal_of_unread(subject.split() or ["help"], rest))
    else:
        file = Path(rest[0])
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        print(suggestion(subject, rest[1:], text))
