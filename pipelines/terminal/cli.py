"""The `goldfold` command: one verb per stage, each with typed options.

Every platform and every caller uses the same command line; `make` only adds the order of the verbs:

    make train SET="train.epochs=3"                      Linux, macOS
    goldfold train --set "train.epochs=3"                anywhere after `pip install -e ".[cpu]"`, Windows included
    python -m pipelines train --set "train.epochs=3"     the same from the project's folder, without installation
    !python -m pipelines train --set "train.epochs=3"    a notebook cell, after %cd to the project's folder

download, train and predict run several stages each (CHAINS); --alone runs one. Verbs separated by `+` run in one process,
which starts TensorFlow once:

    goldfold download + train + predict --params photos.yaml      --params, --set, --work, ... hold for all of them

Each option can also be given by a variable of the environment, as the Makefile does: GOLDFOLD_MEMBER=cnn for --member cnn.
A value then meets no shell, and no other user sees it in the list of processes.
"""

import atexit
import gc
import inspect
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pipelines.terminal.hosts import Hosts
from pipelines.terminal.options import FIELDS, Options, flag_of, make_name
from pipelines.terminal.output import GOALS, print_line
from pipelines.terminal.stage import run_stage
from pipelines.terminal.verbs import BUDGET, CHAINS, COMMON, IN_CHAIN, MODULES, TRAIN_IN_BUDGET, VERBS, Verb

if TYPE_CHECKING:
    from competition.training.engine import Engine

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


@dataclass
class Process:
    """What the verbs of one process share.  is_last: no other verb follows.  engines: of trained networks, by the digest of their run."""

    is_last: bool = True
    engines: "dict[str, Engine]" = field(default_factory=dict)
    hosts: Hosts = field(default_factory=Hosts)


def refuse(problem: str) -> NoReturn:
    """End with one sentence in place of the usage text. It is in the words of make, which print_line replaces without make."""
    print_line(f"goldfold: {problem}", sys.stderr)
    raise typer.Exit(2)


def parameter(name: str, default: object) -> inspect.Parameter:
    """One option as typer reads it from a signature."""
    field_type: Any = FIELDS[name].type
    settings, variable = dict(FIELDS[name].metadata), make_name(name)
    settings.pop("flag", None)
    choices, unit, least = settings.pop("choices", ()), settings.pop("unit", ""), settings.pop("min", 0)
    expected = f"positive number of {unit}" if unit else f"whole number of at least {least}"

    def parse(value: object) -> object:
        """Refuse a text that is none of the choices, or no number of the range.  value: a text, or the default."""
        if not isinstance(value, str) or value in (default, *choices):
            return value
        if choices:
            refuse(f"{variable}={value}: {value!r} is not one of {', '.join(choices)}")
        with suppress(ValueError):
            number: float = field_type(value)
            if (0 < number < math.inf) if unit else (number >= least):
                return number
        refuse(f"{variable}={value}: expected a {expected}, e.g. {variable}={'0.5' if unit else '2'}")

    if choices or field_type in (int, float):
        metavar = f"[{'|'.join(choices)}]" if choices else field_type.__name__.upper()
        settings |= {"metavar": metavar, "parser": parse}
    settings["show_default"] = field_type is not Path  # the help text of a path names its default
    annotation = Annotated[field_type, typer.Option(flag_of(name), **settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def command(name: str, verb: Verb) -> Callable[..., None]:
    """Return the function behind `goldfold NAME`; its signature has the options of the verb."""

    def call(context: typer.Context, **values: Any) -> None:
        options, process = Options(**values), context.obj or Process()
        if name == "train" and options.debug_rows != FIELDS["debug_rows"].default and not options.debug:
            rows = options.debug_rows
            refuse(f"DEBUG_ROWS={rows} without DEBUG=1 has no effect: `make train DEBUG=1`")
        if options.hours and options.budget:
            refuse(f"HOURS={options.hours:g} and BUDGET={options.budget} both state the time: state one of them")
        goals = os.environ.get(GOALS, "").split()
        is_last = process.is_last and goals[-1:] in ([], [name])  # make, if it called, runs nothing after this verb
        stages = (name,) if options.alone else CHAINS.get(name, (name,))
        if name == "train" and (options.hours or options.budget):
            stages = TRAIN_IN_BUDGET
            if options.alone:
                refuse("the stage `train` has no budget: leave out --alone, or run the stage `budget`")
            if given := [make_name(one) for one in ("member", "fold", "force", "debug") if getattr(options, one)]:
                refuse(f"with HOURS= or BUDGET= the members are chosen and trained by the budget: leave out {given[0]}")
        elif options.debug:
            stages = tuple("debug" if stage == "train" else stage for stage in stages)
        for stage in stages:
            of_stage, stage_verb = options, VERBS[stage]
            if stage != name:
                known = {option: getattr(options, option) for option in (*COMMON, *stage_verb.options)}
                of_stage = Options(**{**known, **stage_verb.defaults, **IN_CHAIN.get(stage, {})})
            following = stage_verb.next if is_last and stage == stages[-1] else ""
            run_stage(MODULES[stage], stage, of_stage, following, process.engines, process.hosts)

    defaults = {f.name: f.default for f in FIELDS.values() if f.name in {*COMMON, *verb.options}} | verb.defaults
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(parameter(option, default) for option, default in defaults.items())]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


for _name, _verb in VERBS.items():
    app.command(_name, help=_verb.help)(command(_name, _verb))


def main() -> None:
    """Run the command line.

    Several verbs, each with its options, are separated by `+`; common options are those of all verbs. Each stage reads and
    writes files as in a process of its own; the first that fails ends the command with its exit code.
    """
    # Without it the interpreter looks for garbage among all objects before it exits: a second with TensorFlow.
    atexit.register(gc.freeze)
    stages = [list(words) for is_between, words in groupby(sys.argv[1:], NEXT_STAGE.__eq__) if not is_between] or [[]]
    for words in stages:
        for before, word in pairwise(words):
            if word in VERBS and not before.startswith("-"):
                # Not the word before, which may be a value with a secret.
                joined = f"goldfold {words[0]} + {word}"
                print_line(f"goldfold: {words[0]} and {word}: `+` joins verbs: {joined}", sys.stderr)
                sys.exit(2)
            key, equals, _ = word.partition("=")  # the value may be a secret
            variable = next((name for name in FIELDS if make_name(name) == key), "")
            is_parameter = "." in key and key.replace(".", "").isidentifier()
            if equals and (variable or is_parameter) and not before.startswith("-"):
                sentence = f'parameters are overridden by --set: goldfold {words[0]} --set "{key}=..."'
                if variable:
                    sentence = f"outside of make it is an option: goldfold {words[0]} {flag_of(variable)} ..."
                print_line(f"goldfold: {key}= was found where an option was expected; {sentence}", sys.stderr)
                sys.exit(2)
    # Options from the environment are removed there, so that no process that a stage starts takes them for its own.
    values: dict[str, str | bool] = {}
    for name, option in FIELDS.items():
        if text := os.environ.pop(f"GOLDFOLD_{make_name(name)}", ""):
            values[name] = text.lower() not in ("0", "no", "false") if isinstance(option.default, bool) else text
    # `download + train --params photos.yaml` is about one competition, and `train + predict --hours 1` about one budget: these options
    # hold for the verbs that do not state them.
    flags = {flag_of(name): name for name in (*COMMON, *BUDGET)}
    for words in stages:
        for word, following in zip(words, [*words[1:], ""], strict=True):
            flag, equals, value = word.partition("=")
            if flag in flags:
                values[flags[flag]] = FIELDS[flags[flag]].type is bool or (value if equals else following)
    defaults = {verb: {n: v for n, v in values.items() if n in (*COMMON, *VERBS[verb].options)} for verb in VERBS}
    if {"member", "fold"} & values.keys() and {"train", "predict"} <= {words[0] for words in stages if words}:
        print_line("MEMBER and FOLD choose what `train` trains; `predict` blends every complete member")
    process = Process()
    for number, arguments in enumerate(stages, 1):
        process.is_last = number == len(stages)
        try:
            app(args=arguments, prog_name="goldfold", obj=process, default_map=defaults)
        except SystemExit as ended:
            if ended.code or process.is_last:
                raise
