"""The command that usually follows a stage, printed at its end."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from competition.config.params import Params
from competition.config.redaction import redact
from pipelines.terminal.options import Options
from pipelines.terminal.output import display_path

# Last stage of a make target with several stages -> the target.
TARGETS = {"prepare": "download", "debug": "train", "blend": "predict"}
NEVER_LAST = {"download", "predict"}  # in the target of the same name


def next_line(verb: str, following: str, params: Params, options: Options, work: Path, goals: str | None) -> str:
    """ "next: make predict PARAMS=recipes/x.yaml"; "" if nothing usually follows, or if it would not be the last line.

    following: the verb that usually follows; "" = none.  work: work/<competition>.  goals: the targets that make was
    asked for, separated by spaces; None without make.
    """
    if options.member or options.fold or (goals is not None and not is_last_of(goals.split(), verb)):
        return ""
    verbs = [following, *(after_blend(params, work) if verb == "blend" else ())] if following else []
    return f"next: {' or '.join(command(one, options, goals is not None) for one in verbs)}" if verbs else ""


def is_last_of(targets: Sequence[str], verb: str) -> bool:
    """Return True if `verb` is the last stage that make runs for these targets."""
    is_last = not targets or targets[-1] in (verb, TARGETS.get(verb))
    return is_last and verb not in NEVER_LAST


def after_blend(params: Params, work: Path) -> tuple[str, ...]:
    """Submit to Kaggle, or grade against a private solution; nothing without either."""
    if params.competition.slug and not params.competition.miniature:
        return ("submit",)
    return ("grade",) if (work / "raw" / "private").is_dir() else ()


def command(verb: str, options: Options, with_make: bool) -> str:
    """The command line of a verb with the same parameter file and overrides; overrides with a secret are not repeated."""
    name, sets = display_path(options.params), options.sets
    words = ["make" if with_make else "goldfold", verb]
    if name != "params.yaml":
        words.append(f"PARAMS={name}" if with_make else f"--params {name}")
    if redact(sets) != sets:  # such as the password of tune.storage
        words.append('SET="..."' if with_make else '--set "..."')
    elif sets.strip():
        quoted = shlex.quote(sets.strip()) if set(sets) & set('"$`\\!') else f'"{sets.strip()}"'
        words.append(f"SET={quoted}" if with_make else f"--set {quoted}")
    return " ".join(words)
