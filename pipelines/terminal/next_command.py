"""The command that usually follows a stage, printed at its end."""

import shlex
from dataclasses import replace
from pathlib import Path

from competition.config.params import Params
from pipelines.terminal.options import Options
from pipelines.terminal.output import as_called, display_path, with_params


def can_be_graded(work: Path, params: Params) -> bool:
    """Whether the metric scores the form of the submission, as `make grade` requires."""
    from competition.prepare.adapter_types import Competition, scores_its_submissions

    file = work / "data" / "competition.json"
    if not file.is_file():
        return True
    competition = Competition.load(file)
    return scores_its_submissions(replace(competition, metric=params.competition.metric or competition.metric))


def next_line(verb: str, following: str, params: Params, options: Options, work: Path) -> str:
    """ "next: make predict PARAMS=recipes/x.yaml"; "" if nothing usually follows.

    following: the verb that usually follows; "" = none.  work: work/<competition>.
    """
    is_part = bool((options.member and verb != "tune") or options.fold)
    if (is_part and verb != "export") or options.join or not following:
        return ""
    line = f"next: make {following}"
    if verb == "blend" and params.competition.slug and not params.competition.miniature:
        line += " or make submit"
    elif verb == "blend" and (work / "raw" / "private").is_dir() and can_be_graded(work, params):
        line += " or make grade"
    line = with_params(line, display_path(options.params), options.sets)
    if following == "predict" and (options.hours or options.budget):
        line += f" HOURS={options.hours:g}" if options.hours else f" BUDGET={options.budget}"
    if verb == "export":  # the server serves the same part
        chosen = (("MEMBER", options.member), ("FOLD", options.fold))
        line += "".join(f" {name}={shlex.quote(value)}" for name, value in chosen if value)
    return as_called(line)
