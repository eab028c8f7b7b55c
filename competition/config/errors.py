"""The error classes for mistakes that the user can correct, and helpers for their messages."""

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MAX_LISTED, MAX_SUGGESTED = 30, 5  # names
# What other libraries call it -> our names, of which the first that is among the choices is suggested.
SYNONYMS = {
    "lr": ("learning_rate",), "wd": ("weight_decay",), "bs": ("batch",), "batch_size": ("batch",), "num_epochs": ("epochs",),
    "arch": ("architecture",), "model": ("architecture",), "backbone": ("architecture",), "pretrained": ("weights",),
    "img_size": ("image_size",), "size": ("image_size",), "resolution": ("image_size",), "n_folds": ("folds",),
    "n_splits": ("folds",), "k": ("folds",), "n_trials": ("trials",), "random_state": ("seed",), "tta": ("views",),
    "momentum": ("ema", "norm_momentum"), "smoothing": ("label_smoothing",), "grad_clip": ("clip_norm",), "hflip": ("flip",),
    "data_dir": ("source",), "path": ("source",), "url": ("slug",),
}  # fmt: skip

Key = str | int  # of a mapping, or the position in a list


class UserError(ValueError):
    """Error caused by user input, shown as one sentence without a traceback: the problem, what was expected, the remedy."""


class MissingWeights(UserError):
    """ImageNet weights that are not on this machine and cannot be downloaded."""


@contextmanager
def needed_for(what: str, extra: str) -> Iterator[None]:
    """Import an optional package in this block. If it is not installed, UserError says what needs it and how to install it.

    extra: of pyproject.toml, which brings the package.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise UserError(f"{what} needs {package}, which is not installed; {how_to_install(extra)}") from None


def how_to_install(extra: str) -> str:
    """The end of a message about a missing package.  extra: of pyproject.toml, which brings it."""
    python, folder = Path(sys.executable), Path.cwd()
    shown = python.relative_to(folder) if python.is_relative_to(folder) else python
    return f"`{shown} -m pip install -e '.[{extra}]'` in goldfold's folder installs it"


@dataclass(eq=False)
class InvalidParameter(Exception):
    """A parameter that fails validation. `load_params` adds the file and the line and raises a UserError."""

    keys: tuple[Key, ...]  # path of the parameter, e.g. ("train", "epochs") or ("tune", "folds", 1)
    problem: str
    conflicts_with: tuple[Key, ...] = ()  # path of another one that does not fit to it, which may be in another file


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 image", "2,000 images"; plural: of a noun that takes no s alone ("classes")."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def first_few(names: Iterable[object], most: int = 5) -> str:
    """List the first `most` names for a message: 'a', 'b', 'c' and 17 more."""
    quoted = [repr(str(name)) for name in names]
    rest = f" and {len(quoted) - most:,} more" if len(quoted) > most else ""
    return ", ".join(quoted[:most]) + rest


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the most similar choice, for those that contain the word, else "; known are ..." for a
    short list, else "".

    `word` itself is never suggested.
    """
    names = [choice for choice in choices if choice not in (word, "")]
    if word.partition(":")[0] in names:  # of YAML
        return f"; write a blank after the colon of {word.partition(':')[0]}"
    similar = [name for name in SYNONYMS.get(word.casefold(), ()) if name in names]
    similar = similar or difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if similar:
        return f"; did you mean '{similar[0]}'?"
    containing = [name for name in names if len(word) > 1 and word.casefold() in name.casefold()]
    if 0 < len(containing) <= MAX_SUGGESTED:
        return f"; did you mean {' or '.join(map(repr, containing))}?"
    return f"; known are {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else ""


def similar_name_beside(path: Path, suffix: str = "/") -> str:
    """Return "; did you mean '/data/photos'?" for the most similar name of a folder beside `path`, else "".

    suffix: of files that are named as well.
    """
    folder = path.parent
    names = [one.name for one in folder.iterdir() if one.is_dir() or one.suffix == suffix] if folder.is_dir() else []
    similar = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    return f"; did you mean '{folder / similar[0]}'?" if similar else ""
