"""Run one stage: its parameters and folders, its messages and exit codes, and the command that usually follows it."""

import faulthandler
import importlib
import logging
import os
import shlex
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from competition.config.errors import UserError
from competition.config.params import Params
from competition.config.params_file import BUDGET_FILE, load_params, parse_overrides
from competition.config.redaction import redact
from competition.config.secrets import known_secrets, words_of_set
from competition.ensemble.settings import validate_params
from competition.files.replacement import finish_replacements
from competition.input_pipeline.named_augmentations import augmentation_named
from competition.workspace.workspace import Workspace
from pipelines.terminal.failures import describe, exit_code, require_folder
from pipelines.terminal.hosts import Hosts
from pipelines.terminal.job import Job
from pipelines.terminal.options import Options
from pipelines.terminal.output import as_called, display_path, print_line, with_params

if TYPE_CHECKING:
    from competition.training.engine import Engine

# Stages whose results end in submissions/.
SUBMITTING = ("tune", "budget", "train", "predict", "blend", "submit", "kernel")
WRITING = ("download", "prepare", "resolve", *SUBMITTING)  # stages that are pointless without a writable work/
SERVERS = ("serve", "dashboard")  # stages that only Ctrl-C ends


def run_stage(
    module: str, verb: str, options: Options, following: str, engines: "dict[str, Engine]", hosts: Hosts
) -> None:
    """Run the `run(job)` of one stage. Exits with 1 after an error, 130 after Ctrl-C and 141 if nobody reads its output.

    A UserError is printed as one sentence; any other error as one line, or as a traceback with DEBUG=1.
    module: of the stage.  following: the verb that usually follows, to be printed at the end; "" = none.
    engines: of earlier stages of this process, by the digest of their run.  hosts: those that all its stages run on.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.captureWarnings(True)
    faulthandler.enable(2)  # a crash in compiled code shows the Python stacks
    known = known_secrets()
    try:
        if not hosts.runs(verb):
            return
        stage = importlib.import_module(module)
        overrides = tuple(parse_overrides(options.sets))
        params = validate_params(load_params(options.params, overrides))
        if verb in ("predict", "blend", "report") and (options.hours or options.budget):
            file = options.work / params.competition.name / BUDGET_FILE
            if not file.is_file():
                reason = "no member is complete yet; `make train HOURS=...` makes the first one"
                raise UserError(f"{display_path(file)} is missing: {reason}")
            # The file has the members, so their overrides are left out.
            sets = shlex.join(word for word in words_of_set(options.sets) if not word.startswith("members."))
            options = replace(options, params=file, sets=sets)
            overrides = tuple(parse_overrides(sets))
            params = validate_params(load_params(options.params, overrides))
        known = known_secrets(params)
        for augmentation in {name for member in params.members.values() for name in member.train.augment}:
            augmentation_named(augmentation, params.plugins)  # an unknown name is an error
        work = options.work / params.competition.name
        require_folder(work, is_written=verb in WRITING)
        require_folder(options.submissions, is_written=verb in SUBMITTING)
        work.mkdir(parents=True, exist_ok=True)
        job = Job(Workspace(work, params, overrides), options, options.submissions, engines=engines, hosts=hosts)
        finish_replacements(work)  # what a killed process left between two folders
        stage.run(job)
        if (line := next_line(verb, following, params, options, work)) and not options.debug:
            job.echo(line)
    except KeyboardInterrupt:
        stopped = "the server was stopped" if verb in SERVERS else "stopped; run the same command again to continue"
        print_line(f"goldfold: {stopped}", sys.stderr)
        sys.exit(130)
    except Exception as error:
        if options.debug:
            print_line(redact(traceback.format_exc(), known).rstrip(), sys.stderr)
        is_expected = isinstance(error, UserError)
        if is_expected or not options.debug:
            sentence = str(error) if is_expected else describe(error)
            sentence = with_params(sentence, display_path(options.params), options.sets)
            print_line(f"goldfold: {redact(sentence, known)}", sys.stderr)
        sys.exit(exit_code(error))


def next_line(verb: str, following: str, params: Params, options: Options, work: Path) -> str:
    """ "next: make predict PARAMS=recipes/x.yaml"; "" if nothing usually follows.

    following: the verb that usually follows; "" = none.  work: work/<competition>.
    """
    is_part = bool((options.member and verb != "tune") or options.fold)
    if (is_part and verb != "export") or options.join or not following:
        return ""
    if following in ("train", "predict") and not params.members:  # all members were trained elsewhere
        has_files = all(Path(one.oof).is_file() for one in params.external.values())
        following = "blend" if has_files else "folds"  # which the models elsewhere are trained on
    line = f"next: make {following}"
    if verb == "blend" and params.competition.slug and not params.competition.miniature:
        line += " or make submit"
    elif verb == "blend" and (work / "raw" / "private").is_dir():
        line += " or make grade"
    line = with_params(line, display_path(options.params), options.sets)
    if following == "predict" and (options.hours or options.budget):
        line += f" HOURS={options.hours:g}" if options.hours else f" BUDGET={options.budget}"
    if verb == "export":  # the server serves the same part
        line += f" MEMBER={options.member}" * bool(options.member) + f" FOLD={options.fold}" * bool(options.fold)
    return as_called(line)
