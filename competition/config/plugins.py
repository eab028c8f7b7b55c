"""The user's own code: one Python file, named by `plugins:` in a parameter file (docs/plugins.md).

The file defines dictionaries (MODELS, VIEWS, AUGMENTATIONS, METRICS, ADAPTERS, CALLBACKS) from names to functions.
`load_params` loads it into `Params.plugins`, which is passed to whatever looks up a name (of an architecture, a view, a metric, ...).
"""

import ast
import difflib
import inspect
import sys
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from competition.config.digests import definition_digest
from competition.config.errors import UserError, did_you_mean

HEAVY = {"tensorflow", "keras", "keras_hub", "jax"}
MODULE = "goldfold_plugins"  # name of the imported module

Function = Callable[..., Any]
Parameters = tuple[str, ...]
# Kind -> signatures, by the names of the parameters. An adapter is a dictionary of functions.
SIGNATURES: dict[str, tuple[Parameters, ...]] = {
    "MODELS": (("image_size", "classes"), ("image_size", "classes", "alpha")),
    "VIEWS": (("images",),),
    "AUGMENTATIONS": (("image", "strength", "rng"), ("images", "strength", "seed")),
    "METRICS": (("labels", "probs"),),
    "CALLBACKS": (("values",),),
}
ADAPTER_SIGNATURES: dict[str, Parameters] = {
    "download": ("raw", "settings", "fetch"),
    "describe": ("raw", "settings"),
    "rows": ("raw", "settings"),
}
KINDS = (*SIGNATURES, "ADAPTERS")


@dataclass(frozen=True)
class LowerIsBetter:
    """A metric of which lower values are better, as a value of METRICS."""

    function: Function


@dataclass(frozen=True)
class Plugins:
    """The content of a plugins file.  file: None = no plugins.

    Two of the same path and text are equal: what was compiled with the functions of one is used for the other.
    As a path, and as a value of stored parameters, it is the path of its file, or "".
    adapters: name -> an object with the three functions of an adapter.
    """

    file: Path | None = None
    source: str = field(default="", repr=False)
    models: Mapping[str, Function] = field(default_factory=dict, compare=False)
    views: Mapping[str, Function] = field(default_factory=dict, compare=False)
    augmentations: Mapping[str, Function] = field(default_factory=dict, compare=False)
    metrics: Mapping[str, Function | LowerIsBetter] = field(default_factory=dict, compare=False)
    adapters: Mapping[str, SimpleNamespace] = field(default_factory=dict, compare=False)
    callbacks: Mapping[str, Function] = field(default_factory=dict, compare=False)

    def __fspath__(self) -> str:
        return str(self.file or "")

    def named(self, kind: str, name: str, own_names: Container[str]) -> Any:
        """What the file defines under this name; None if it does not.

        kind: one of KINDS.  own_names: the project's own names of this kind, which a plugin cannot replace (UserError).
        """
        value = getattr(self, kind.lower()).get(name)
        if value is not None and name in own_names:
            raise UserError(self.problem(f"{kind}[{name!r}]", "the project has this name itself; choose another"))
        return value

    def digests(self, kind: str, names: Iterable[str]) -> dict[str, str]:
        """Name -> digest of the source behind those of `names` that the file defines.

        kind: one of KINDS.  The source of a name is its entry in the dictionary and every definition of the file that it
        reaches, without comments, docstrings and formatting.
        """
        values = getattr(self, kind.lower())
        return {name: definition_digest(self.source, kind, name) for name in sorted({*names}) if name in values}

    def digests_by_kind(self, **names: Iterable[str]) -> dict[str, str]:
        """ "KIND.name" -> digest of the source behind it.  names: kind -> names, the project's own among them."""
        return {f"{kind}.{name}": one for kind in names for name, one in self.digests(kind, names[kind]).items()}

    def dependencies(self, **names: Iterable[str]) -> dict[str, dict[str, str]]:
        """{"plugins": name -> digest} of the user's code that a result depends on; {} if it depends on none.

        names: kind (MODELS, VIEWS, ...) -> names that the result uses, the project's own among them.
        """
        digests = self.digests_by_kind(**names)
        return {"plugins": digests} if digests else {}

    def call(self, what: str, function: Function, *arguments: Any, **named: Any) -> Any:
        """Call one of its functions. An exception becomes a UserError with the line of the file.

        what: for the message, e.g. "MODELS['tiny']".
        """
        try:
            return function(*arguments, **named)
        except UserError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise UserError(self.problem(what, text, error)) from error

    def problem(self, what: str, text: str, error: BaseException | None = None) -> str:
        """The message "<file> line <n>: <what>: <text>".

        what: such as "VIEWS['inverted']".  error: an exception that passed through the file; without one there is no line.
        """
        frames = traceback.extract_tb(error.__traceback__) if error else ()
        lines = [frame.lineno for frame in frames if self.file and frame.filename == str(self.file)]
        line, name = lines[-1] if lines else 0, self.file.name if self.file else "plugins"
        return f"{name}{f' line {line}' if line else ''}: {what}: {text}"


NO_PLUGINS = Plugins()


def load_plugins(path: Path) -> Plugins:
    """Run a plugins file and check its dictionaries.

    Raises UserError: the file is missing or fails (with its line), a kind is unknown, or a value has another signature.
    """
    try:
        source = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; a plugins file is Python code (docs/plugins.md)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text ({error}); expected Python code") from None
    plugins = Plugins(path, source)
    module = _run(plugins, path)
    for name in vars(module):
        similar = difflib.get_close_matches(name, KINDS, n=1, cutoff=0.85)
        if name.isupper() and similar and similar[0] not in (name, *vars(module)):
            raise UserError(f"{path.name}: {name} is no kind of plugin; did you mean '{similar[0]}'?")
    kinds: dict[str, Any] = {kind: getattr(module, kind, {}) for kind in KINDS}
    for kind, values in kinds.items():
        if not isinstance(values, dict):
            raise UserError(plugins.problem(kind, f"a dictionary was expected, {type(values).__name__} was found"))
        for name, value in values.items():
            what = f"{kind}[{name!r}]"
            if not isinstance(name, str) or not name or not name.replace("_", "a").isalnum():
                raise UserError(plugins.problem(what, "a name of letters, digits and '_' was expected"))
            if kind in SIGNATURES:
                function = value.function if isinstance(value, LowerIsBetter) and kind == "METRICS" else value
                _check_signature(plugins, what, function, SIGNATURES[kind])
    kinds["ADAPTERS"] = {name: _adapter(plugins, name, parts) for name, parts in kinds["ADAPTERS"].items()}
    return replace(plugins, **{kind.lower(): values for kind, values in kinds.items()})


def _run(plugins: Plugins, path: Path) -> ModuleType:
    """Execute the file as a module. Nothing is written beside it.

    Raises UserError for an import that starts Keras before the backend is selected. Functions run later; of an `if` the
    condition may be false.
    """
    with suppress(SyntaxError):  # which executing it raises, with its line
        pending: list[ast.AST] = [ast.parse(plugins.source)]
        for node in pending:  # which grows meanwhile
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                if heavy := {name.partition(".")[0] for name in names} & HEAVY:
                    problem = f"{heavy.pop()} is imported when the file is loaded, which every command does"
                    remedy = "move the import into the functions that use it"
                    raise UserError(f"{path.name} line {node.lineno}: {problem}; {remedy}")
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If):
                pending += ast.iter_child_nodes(node)
    module = ModuleType(MODULE)
    module.__file__ = str(path.absolute())
    sys.modules[MODULE] = module  # dataclasses look their module up by name
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        SourceFileLoader(MODULE, str(path)).exec_module(module)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        if isinstance(error, ModuleNotFoundError) and (path.parent / f"{error.name}.py").is_file():
            text += "; a plugins file is one file: copy what it needs into it"
        raise UserError(plugins.problem(type(error).__name__, text, error)) from error
    finally:
        sys.dont_write_bytecode = writes_bytecode
    return module


def _check_signature(plugins: Plugins, what: str, function: object, accepted: tuple[Parameters, ...]) -> None:
    """Require a function that takes the parameters of one of `accepted`, and no other required ones."""
    expected = " or ".join(f"({', '.join(names)})" for names in accepted)
    if not callable(function):
        raise UserError(plugins.problem(what, f"{type(function).__name__} was found, no function of {expected}"))
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # max, dict and others that are written in C
        raise UserError(plugins.problem(what, f"its parameters are unknown; write a function of {expected}")) from None
    stated = tuple(p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD)
    others = [p.name for p in parameters if p.default is p.empty and p.kind is not p.POSITIONAL_OR_KEYWORD]
    if stated not in accepted or others:
        parameter_names = ", ".join(p.name for p in parameters)
        raise UserError(plugins.problem(what, f"it takes ({parameter_names}); the parameters {expected} were expected"))


def _adapter(plugins: Plugins, name: str, parts: object) -> SimpleNamespace:
    """The functions of one adapter as attributes, as of an adapter's module."""
    what = f"ADAPTERS[{name!r}]"
    if not isinstance(parts, dict):
        expected = ", ".join(ADAPTER_SIGNATURES)
        raise UserError(plugins.problem(what, f"a dictionary of the functions {expected} was expected"))
    for part in parts:
        if part not in ADAPTER_SIGNATURES:
            raise UserError(plugins.problem(what, f"unknown function {part!r}{did_you_mean(part, ADAPTER_SIGNATURES)}"))
    for part, names in ADAPTER_SIGNATURES.items():
        if part in parts:
            _check_signature(plugins, f"{what}[{part!r}]", parts[part], (names,))
        else:
            raise UserError(plugins.problem(what, f"its function {part!r} is missing"))
    functions = {part: partial(plugins.call, f"{what}[{part!r}]", function) for part, function in parts.items()}

    def rows(raw: Path, settings: object) -> Iterator[object]:
        iterator, end = iter(functions["rows"](raw, settings)), object()
        while (row := plugins.call(f"{what}['rows']", next, iterator, end)) is not end:
            yield row

    return SimpleNamespace(**{**functions, "rows": rows})
