"""The `goldfold` command: one verb per stage, each with typed options.

Every platform and every caller uses the same command line; `make` only adds the order of the verbs:

    make train SET="train.epochs=3"                      Linux, macOS
    goldfold train --set "train.epochs=3"                anywhere after `pip install -e ".[cpu]"`, Windows included
    python -m pipelines train --set "train.epochs=3"     the same from the project's folder, without installation
    !python -m pipelines train --set "train.epochs=3"    a notebook cell, after %cd to the project's folder

What the make targets run: download = download, prepare; train = resolve, preflight --mode ops --if-tpu, tune, train;
predict = predict, blend. Stages separated by `+` run in one process, which starts TensorFlow once:

    goldfold download + prepare + resolve + tune + train + predict + blend
"""

import atexit
import gc
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.terminal.options import FIELDS, Options, flag_of
from pipelines.terminal.stage import run_stage

NEXT_STAGE = "+"


COMMON = ("params", "sets", "work", "submissions", "force", "debug")


@dataclass(frozen=True)
class Verb:
    """help: one line. options: names of fields of Options beside the common ones. defaults: where they differ.

    next: the verb that usually follows.
    """

    help: str
    options: Sequence[str] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    next: str = ""


SELECTION = ("member", "fold")
PREFLIGHT = ("topology", "mode", "backend", "step", "search", "most", "classes", "limit", "if_tpu")
# Folder of pipelines/ -> its verbs, in the order in which they are used.
FOLDERS: dict[str, dict[str, Verb]] = {
    "main_job": {
        "download": Verb("Download the competition and verify every file.", ("only",), next="prepare"),
        "prepare": Verb("Index the images, assign folds and write records.", ("folds_from",), next="train"),
        "resolve": Verb("Choose where records are read from on this machine."),
        "tune": Verb("Search hyperparameters.", (*SELECTION, "workers", "join", "cluster"), next="train"),
        "train": Verb("Train every fold model that is not current.", (*SELECTION, "cluster"), next="predict"),
        "predict": Verb(
            "Predict out-of-fold and test rows under every view.", ("allow_partial", "cluster"), next="blend"
        ),
        "blend": Verb("Fit TTA policy, blend and decision rule.", ("allow_partial",), next="report"),
        "submit": Verb("Submit once and wait for the score.", ("file", "again"), next="submissions"),
    },
    "inspect": {
        "doctor": Verb("Check this machine and its results, or explain an error.", ("explain",)),
        "runs": Verb("List the runs with their difference from the parameters, scores, time and size.", ("member",)),
        "adopt": Verb(
            "Write the parameters of a run or of a trial into the parameter file.", ("run", "trial"), next="train"
        ),
        "prune": Verb("List runs that nothing uses; --force removes them."),
        "report": Verb("Write report.html."),
        "table": Verb("Compare all blends and TTA policies by honest score.", ("allow_partial",), next="report"),
        "compare": Verb("Compare two blends: difference and changed rows.", ("a", "b")),
        "diff": Verb("Compare two submissions: ids and classes that differ.", ("a", "b")),
        "bench": Verb("Measure images per second.", SELECTION),
        "noise": Verb("Measure the spread of a member's score over seeds.", (*SELECTION, "seeds"), next="blend"),
        "grad-cam": Verb("Show what the network looks at in wrong and right rows.", ("member",), next="report"),
        "issues-in-labels": Verb("List labels that are probably wrong.", next="report"),
        "debug": Verb("Train eagerly on few rows, with checks and pictures.", (*SELECTION, "debug_rows"), next="train"),
        "dashboard": Verb(
            "Show the studies in the browser, by optuna-dashboard.",
            ("member", "address"),
            {"address": "127.0.0.1:8080"},
        ),
        "folds": Verb("Export the folds as CSV for models trained elsewhere.", next="blend"),
        "grade": Verb("Score a submission of a local competition.", ("file",), next="report"),
    },
    "kaggle": {
        "kernel": Verb(
            "Train and predict missing fold models on Kaggle.", (*SELECTION, "inline", "again"), next="predict"
        ),
        "kernel-status": Verb("Show the status or the log of the kernel.", ("log",)),
        "quota": Verb("Show the hours of TPU and GPU that are left this week."),
        "submissions": Verb("List submissions with expected and public scores."),
        "leaderboard": Verb("Show the top of the public leaderboard and the own rank.", ("top",)),
    },
    "machines": {
        "preflight": Verb(
            "Compile the members for a TPU that need not be attached.",
            (*SELECTION, *PREFLIGHT),
            {"topology": "v5e-8"},
            next="plan",
        ),
        "plan": Verb("Estimate hours, sessions and cost.", (*SELECTION, "topology", "machines"), next="train"),
        "bucket": Verb("Synchronise results with storage.bucket."),
        "convert": Verb("Convert images to TFRecord shards.", ("source", "target")),
    },
    "serving": {
        "export": Verb(
            "Export the blend or one member as one model that serves.", (*SELECTION, "format"), next="serve"
        ),
        "serve": Verb("Serve an export over HTTP, with a page to try it.", (*SELECTION, "engine", "address")),
    },
}
VERBS = {name: verb for verbs in FOLDERS.values() for name, verb in verbs.items()}

app = typer.Typer(
    name="goldfold",
    help="From a Kaggle image-classification competition to a submission. The main job: download, prepare, resolve, "
    "tune, train, predict, blend. Parameters are in params.yaml.",
    no_args_is_help=True,
    context_settings={"max_content_width": 120},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # run_stage decides which tracebacks are shown
)


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Return a typer callback that accepts `choices` and the empty string."""

    def check(value: str) -> str:
        if value and value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return check


def parameter(name: str, default: Any) -> inspect.Parameter:
    """One option as typer reads it from a signature."""
    field_type: Any = FIELDS[name].type
    settings = {key: value for key, value in FIELDS[name].metadata.items() if key not in ("flag", "choices")}
    if choices := FIELDS[name].metadata.get("choices"):
        settings |= {"metavar": f"[{'|'.join(choices)}]", "callback": one_of(choices)}
    settings["show_default"] = field_type is not Path  # the help text of a path names its default
    annotation = Annotated[field_type, typer.Option(flag_of(name), **settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def command(folder: str, name: str, verb: Verb) -> Callable[..., None]:
    """Return the function behind `goldfold NAME`; its signature has the options of the verb."""

    def call(context: typer.Context, **values: Any) -> None:
        module = f"pipelines.{folder}.{name.replace('-', '_')}"
        run_stage(module, name, Options(**values), verb.next, is_last=context.obj != NEXT_STAGE)

    defaults = {f.name: f.default for f in FIELDS.values() if f.name in {*COMMON, *verb.options}} | verb.defaults
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(parameter(option, default) for option, default in defaults.items())]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


for _folder, _verbs in FOLDERS.items():
    for _name, _verb in _verbs.items():
        app.command(_name, help=_verb.help)(command(_folder, _name, _verb))


def main() -> None:
    """Run the command line.

    Several stages, each with its options, are separated by `+`. Each reads and writes files as in a process of its own;
    the first that fails ends the command with its exit code.
    """
    # Without it the interpreter looks for garbage among all objects before it exits: a second with TensorFlow.
    atexit.register(gc.freeze)
    *stages, last = split_stages(sys.argv[1:])
    for arguments in stages:
        try:
            app(args=arguments, prog_name="goldfold", obj=NEXT_STAGE)
        except SystemExit as ended:
            if ended.code:
                raise
    app(args=last, prog_name="goldfold")


def split_stages(arguments: Sequence[str]) -> list[list[str]]:
    """["train", "--force", "+", "predict"] -> [["train", "--force"], ["predict"]]"""
    stages: list[list[str]] = [[]]
    for argument in arguments:
        if argument == NEXT_STAGE:
            stages.append([])
        else:
            stages[-1].append(argument)
    return stages
