"""The command that usually follows a stage, printed at its end."""

import shlex
from pathlib import Path

from competition.config.params import Params
from competition.config.params_file import BUDGET_FILE
from competition.config.secrets import public_sets
from pipelines.terminal.options import Options
from pipelines.terminal.output import as_called, display_path

LONGEST = 200  # characters of SET that are repeated


def next_line(verb: str, following: str, params: Params, options: Options, work: Path) -> str:
    """ "next: make predict PARAMS=recipes/x.yaml"; "" if nothing usually follows.

    following: the verb that usually follows; "" = none.  work: work/<competition>.
    """
    if (options.member and verb != "tune") or options.fold or not following:
        return ""
    line = f"next: {command(following, options)}"
    if verb == "blend" and params.competition.slug and not params.competition.miniature:
        line += f" or {command('submit', options)}"
    elif verb == "blend" and (work / "raw" / "private").is_dir():
        line += f" or {command('grade', options)}"
    return as_called(line)


def command(verb: str, options: Options) -> str:
    """The call of make with the same parameter file and overrides; long ones, and secrets, are not repeated."""
    name, given = display_path(options.params), options.sets.strip()
    sets = public_sets(given)
    if sets == given and options.params.parts[-2:] == BUDGET_FILE.parts:
        sets = given = ""
    words = ["make", verb]
    if name != "params.yaml":
        words.append(f"PARAMS={shlex.quote(name)}")
    if sets != given or len(sets) > LONGEST:
        words.append('SET="..."')
    elif sets:
        words.append(f"SET={shlex.quote(sets)}" if set(sets) & set('"$`\\!') else f'SET="{sets}"')
    if verb == "predict" and (options.hours or options.budget):
        words.append(f"HOURS={options.hours:g}" if options.hours else f"BUDGET={options.budget}")
    return " ".join(words)
