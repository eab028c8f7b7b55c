"""The `goldfold` command: one verb per stage, each with typed options.

Every platform and every caller uses the same command line; `make` only adds the order of the verbs:

    make train SET="train.epochs=3"                      Linux, macOS
    goldfold train --set "train.epochs=3"                anywhere after `pip install -e ".[cpu]"`, Windows included
    python -m pipelines train --set "train.epochs=3"     the same from the project's folder, without installation
    !python -m pipelines train --set "train.epochs=3"    a notebook cell, after %cd to the project's folder

download, train and predict run several stages each (CHAINS); --alone runs one. Verbs separated by `+` run in one process,
which starts TensorFlow once:

    goldfold download + train + predict

Each option can also be given by a variable of the environment, as the Makefile does: GOLDFOLD_MEMBER=cnn for --member cnn.
A value then meets no shell, and no other user sees it in the list of processes.
"""

import atexit
import gc
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.terminal.options import FIELDS, Options, flag_of, variable_of
from pipelines.terminal.output import GOALS, print_line
from pipelines.terminal.stage import run_stage
from pipelines.terminal.verbs import CHAINS, COMMON, IN_CHAIN, MODULES, RENAMED_VERBS, VERBS, Verb

NEXT_STAGE = "+"

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


def command(name: str, verb: Verb) -> Callable[..., None]:
    """Return the function behind `goldfold NAME`; its signature has the options of the verb."""

    def call(context: typer.Context, **values: Any) -> None:
        options, is_last = Options(**values), context.obj != NEXT_STAGE and is_last_goal(name)
        stages = stages_of(name, options)
        for stage in stages:
            following = VERBS[stage].next if is_last and stage == stages[-1] else ""
            run_stage(MODULES[stage], stage, options_of(stage, options) if len(stages) > 1 else options, following)

    defaults = {f.name: f.default for f in FIELDS.values() if f.name in {*COMMON, *verb.options}} | verb.defaults
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(parameter(option, default) for option, default in defaults.items())]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def stages_of(name: str, options: Options) -> tuple[str, ...]:
    """The stages that a verb runs. A chosen file is not prepared; with --debug the stage `debug` trains."""
    if options.alone or options.only or name not in CHAINS:
        return (name,)
    return tuple("debug" if stage == "train" and options.debug else stage for stage in CHAINS[name])


def options_of(stage: str, options: Options) -> Options:
    """The options of one stage of a chain: those that it knows, and what the chain sets."""
    verb = VERBS[stage]
    known = {name: getattr(options, name) for name in (*COMMON, *verb.options)}
    return Options(**{**known, **verb.defaults, **IN_CHAIN.get(stage, {})})


def is_last_goal(name: str) -> bool:
    """Return True if make, if it was called by make, runs nothing after this verb."""
    goals = os.environ.get(GOALS, "").split()
    return not goals or goals[-1] == name


def refusal(former: str, name: str) -> Callable[[], None]:
    """Return the function behind a verb that was renamed: it says the name of today and exits with 2."""

    def call() -> None:
        print_line(f"goldfold: {former} is now called {name}: run `make {name}`", sys.stderr)
        raise typer.Exit(2)

    return call


for _name, _verb in VERBS.items():
    app.command(_name, help=_verb.help)(command(_name, _verb))
for _former, _name in RENAMED_VERBS.items():
    app.command(_former, hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(
        refusal(_former, _name)
    )


def main() -> None:
    """Run the command line.

    Several verbs, each with its options, are separated by `+`. Each stage reads and writes files as in a process of its own;
    the first that fails ends the command with its exit code.
    """
    # Without it the interpreter looks for garbage among all objects before it exits: a second with TensorFlow.
    atexit.register(gc.freeze)
    stages: list[list[str]] = [[]]
    for argument in sys.argv[1:]:
        if argument == NEXT_STAGE:
            stages.append([])
        else:
            stages[-1].append(argument)
    *verbs, last = stages
    values: dict[str, str | bool] = {}
    for name, option in FIELDS.items():
        if text := os.environ.pop(variable_of(name), ""):
            values[name] = text.lower() not in ("0", "no", "false") if isinstance(option.default, bool) else text
    defaults = {verb: {n: v for n, v in values.items() if n in (*COMMON, *VERBS[verb].options)} for verb in VERBS}
    for arguments in verbs:
        try:
            app(args=arguments, prog_name="goldfold", obj=NEXT_STAGE, default_map=defaults)
        except SystemExit as ended:
            if ended.code:
                raise
    app(args=last, prog_name="goldfold", default_map=defaults)
