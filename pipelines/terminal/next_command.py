"""The command that usually follows a stage, printed at its end."""

import os
import shlex
from pathlib import Path

from competition.config.params import Params
from competition.config.params_file import BUDGET_FILE
from competition.config.secrets import public_sets
from pipelines.terminal.options import Options
from pipelines.terminal.output import GOALS, display_path

LONGEST = 60  # characters of SET that are repeated


def next_line(verb: str, following: str, params: Params, options: Options, work: Path) -> str:
    """ "next: make predict PARAMS=recipes/x.yaml"; "" if nothing usually follows.

    following: the verb that usually follows; "" = none.  work: work/<competition>.
    """
    if options.member or options.fold or not following:
        return ""
    with_make = GOALS in os.environ
    others = []
    if verb == "blend" and params.competition.slug and not params.competition.miniature:
        others = ["submit"]
    elif verb == "blend" and (work / "raw" / "private").is_dir():
        others = ["grade"]
    line, prefix = f"next: {command(following, options, with_make)}", "make" if with_make else "goldfold"
    has_options = line != f"next: {prefix} {following}"
    for other in others:
        line += f" or {prefix} {other}" + (" with the same parameters" if has_options else "")
    return line


def command(verb: str, options: Options, with_make: bool) -> str:
    """The command line of a verb with the same parameter file and overrides; long ones, and secrets, are not repeated."""
    name, given = display_path(options.params), options.sets.strip()
    sets = public_sets(given)
    if sets == given and options.params.parts[-2:] == BUDGET_FILE.parts:
        sets = given = ""
    words = ["make" if with_make else "goldfold", verb]
    if name != "params.yaml":
        words.append(f"PARAMS={shlex.quote(name)}" if with_make else f"--params {shlex.quote(name)}")
    if sets != given or len(sets) > LONGEST:
        words.append('SET="..."' if with_make else '--set "..."')
    elif sets:
        quoted = shlex.quote(sets) if set(sets) & set('"$`\\!') else f'"{sets}"'
        words.append(f"SET={quoted}" if with_make else f"--set {quoted}")
    if verb == "predict" and (options.hours or options.budget):
        name, value = ("hours", f"{options.hours:g}") if options.hours else ("budget", options.budget)
        words.append(f"{name.upper()}={value}" if with_make else f"--{name} {value}")
    return " ".join(words)
