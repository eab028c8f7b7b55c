"""The command that usually follows a stage, printed at its end."""

from collections.abc import Mapping
from pathlib import Path

from competition.config.params import Params

# Stage -> the verbs that usually follow it.
NEXT: Mapping[str, tuple[str, ...]] = {
    "download": ("prepare",),
    "prepare": ("train",),
    "tune": ("train",),
    "debug": ("train",),
    "train": ("predict",),
    "predict": ("blend",),
    "folds": ("blend",),
    "kernel": ("predict",),
    "noise": ("blend",),
    "adopt": ("train",),
    "preflight": ("plan",),
    "plan": ("train",),
    "grad-cam": ("report",),
    "issues-in-labels": ("report",),
    "table": ("report",),
    "grade": ("report",),
    "export": ("serve",),
    "submit": ("submissions",),
}
# Stages that a make target runs in one go with the one before: the next command of `download` is then that of `prepare`.
WITHIN_A_TARGET = {"download", "predict"}
BEFORE_TRAINING = {"preflight", "tune"}  # make train runs them first


def next_line(verb: str, params: Params, file: Path, work: Path, goals: str | None, one_member: bool = False) -> str:
    """ "next: make predict PARAMS=recipes/x.yaml"; "" if nothing usually follows, or if make runs it anyway.

    file: of the parameters.  work: work/<competition>.  goals: the targets that make was asked for, separated by spaces;
    None without make.  one_member: the stage did only a part of its work.
    """
    targets = None if goals is None else goals.split()
    if one_member or (targets is not None and verb in WITHIN_A_TARGET):
        return ""
    if targets is not None and verb in BEFORE_TRAINING and verb not in targets:
        return ""
    verbs = ("report", *after_blend(params, work)) if verb == "blend" else NEXT.get(verb, ())
    verbs = tuple(one for one in verbs if one not in (goals or "").split())
    return f"next: {' or '.join(command(one, file, goals is not None) for one in verbs)}" if verbs else ""


def after_blend(params: Params, work: Path) -> tuple[str, ...]:
    """Submit to Kaggle, or grade against a private solution; nothing without either."""
    if params.competition.slug and not params.competition.miniature:
        return ("submit",)
    return ("grade",) if (work / "raw" / "private").is_dir() else ()


def command(verb: str, file: Path, with_make: bool) -> str:
    """The command line of a verb with the same parameter file."""
    try:
        name = file.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        name = str(file)
    option = "" if name == "params.yaml" else f" PARAMS={name}" if with_make else f" --params {name}"
    return f"{'make' if with_make else 'goldfold'} {verb}{option}"
