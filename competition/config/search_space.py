"""The search space of a study: which parameters can be searched, how `tune.search` is checked, and members with other values.

A key is a parameter of `train`, a parameter of the member (architecture, image_size, alpha, weights), augment.NAME, the
strength of one entry of train.augment, or head.kind, head.strength and head.hidden of a frozen-feature member.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from competition.config.errors import did_you_mean
from competition.config.params import AboveZero, Choice, Dimension, Finite, Head, Member, Positive, Train, Tune

Problem = tuple[tuple[str, ...], str]  # path below tune.search, what is wrong
Values = dict[str, Any]  # searched parameter -> value

MEMBER_KEYS = ("architecture", "image_size", "alpha", "weights")
# A lucky seed is no hyperparameter; the strengths in augment have keys of their own.
NOT_SEARCHED = ("seed", "augment", "albumentations")
AUGMENT = "augment."
# Key -> its type, with its limits; head.strength replaces the tried strengths by one.
HEAD_KEYS: dict[str, Any] = {
    "head.kind": get_type_hints(Head)["kind"],
    "head.strength": AboveZero,
    "head.hidden": Positive,
}
TYPES: dict[str, Any] = {
    **{key: kind for key, kind in get_type_hints(Train, include_extras=True).items() if key not in NOT_SEARCHED},
    **{key: kind for key, kind in get_type_hints(Member, include_extras=True).items() if key in MEMBER_KEYS},
    **HEAD_KEYS,
}
# The own head.strength of a member that states none or several: each fold model chooses. Such an odd number that no trial draws it.
CHOSEN_IN_EACH_FOLD = 1.000000001
CHECKED_TOGETHER = ("architecture", "weights", "probe")  # parameters of which not every combination is allowed

# Parameters of train that a compiled engine reads at run time. Every other one is compiled in: another value needs another
# engine, which costs a compilation.
AT_RUN_TIME = {
    "seed", "epochs", "patience", "patience_share", "probe", "low_resolution_size", "steps_per_call", "freeze_epochs",
    "learning_rate", "warmup", "weight_decay", "clip_norm", "clip_value", "epsilon", "focal_gamma", "layer_decay",
    "flip", "shift", "zoom", "rotate", "crop", "brightness", "contrast", "saturation", "erase",
    "mixup", "cutmix", "label_smoothing", "class_weights", "sampling",
}  # fmt: skip
ON_OR_OFF = ("ema", "low_resolution_epochs")  # only whether they are above 0 is compiled in


def can_be_tuned(member: Member, search: Mapping[str, Dimension]) -> bool:
    """Return True if a study may search values for this member.

    A student uses those of its recipe, because its teachers are trained only after tuning, and a member with tuned folds states
    values that were chosen already. A head is not trained by steps, so a search of a learning rate changes nothing in it.
    """
    is_searched = member.head is None or any(key in MEMBER_KEYS or key in HEAD_KEYS for key in search)
    return is_searched and not member.teacher and not member.tuned_folds


def is_tuned(member: Member, name: str, tune: Tune) -> bool:
    """Return True if `make train` searches values for this member first."""
    is_selected = bool(tune.trials and tune.folds) and name in (tune.members or [name])
    return is_selected and can_be_tuned(member, tune.search)


def search_problems(search: Mapping[str, Dimension], is_grid: bool) -> Iterator[Problem]:
    """What is wrong with the search space, without regard to the members.  is_grid: every value is to be tried."""
    for key, dimension in search.items():
        if not key.startswith(AUGMENT) and key not in TYPES:
            hint = did_you_mean(key, [*TYPES, f"{AUGMENT}noise"])
            yield (key,), f"no parameter that a trial can change{hint}"
            return
        is_endless = dimension.step is None and (dimension.log or number_type(key) is not int)
        if problem := _form_problem(key, dimension):
            yield (key,), problem
        elif is_grid and not dimension.choices and is_endless:
            yield (key,), "an interval without step was found; tune.sampler: grid needs step or choices"
        yield from _value_problems(key, dimension)
        for parent, allowed in dimension.when.items():
            path = (key, "when", parent)
            if parent not in search:
                yield path, f"not a searched parameter{did_you_mean(parent, search)}"
            elif not search[parent].choices:
                yield path, f"{parent} is searched in an interval; a condition needs a parameter with choices"
            elif unknown := [value for value in allowed if value not in search[parent].choices]:
                yield path, f"{unknown[0]!r} is no choice of {parent}: {list(search[parent].choices)}"
            elif key in _ancestors(parent, search):
                yield path, f"{key} and {parent} depend on each other"


def _form_problem(key: str, dimension: Dimension) -> str:
    """What is wrong with an interval or with choices, whatever the parameter's own range; "" if nothing is."""
    low, high, step = dimension.low, dimension.high, dimension.step
    if dimension.choices:
        if (low, high, step, dimension.log) != (None, None, None, False):
            return "choices were found beside low, high, step or log; state either choices or an interval"
        is_choice = len(set(map(repr, dimension.choices))) > 1
        return "" if is_choice else f"{list(dimension.choices)} was found; two or more different choices were expected"
    if number_type(key) is None:
        return f"choices: [...] was expected, because {key} is no number"
    if low is None or high is None or low >= high or (dimension.log and low <= 0):
        return f"low {low} and high {high} are not an interval; low must be below high, and above 0 if log is true"
    if dimension.log and step is not None:
        return "log and step were found; a logarithmic interval has no step, use choices"
    if number_type(key) is int and any(value != int(value) for value in (low, high, step or 1)):
        return f"low {low}, high {high}, step {step}: {key} is a whole number, so all three must be"
    return ""


def _value_problems(key: str, dimension: Dimension) -> Iterator[Problem]:
    """Values of a wrong type or outside the range of the parameter."""
    adapter: TypeAdapter[Any] = TypeAdapter(TYPES.get(key, Finite))
    values: dict[tuple[str, ...], Choice | None] = {("low",): dimension.low, ("high",): dimension.high}
    values |= {("choices", str(n)): value for n, value in enumerate(dimension.choices)}
    for path, value in values.items():
        if value is None:
            continue
        if number_type(key) is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # 3.0 is a whole number; as a number, 3 is one in any case
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            yield (key, *path), f"{value!r} was found; {message[0].lower()}{message[1:]}"


def _ancestors(key: str, search: Mapping[str, Dimension]) -> set[str]:
    """`key` and all parameters that its conditions name, directly or not."""
    reached, pending = set(), [key]
    while pending:
        one = pending.pop()
        if one not in reached and one in search:
            reached.add(one)
            pending += search[one].when
    return reached


def number_type(key: str) -> type | None:
    """int or float, or None for a parameter that is neither."""
    hint = TYPES.get(key, Finite)  # Finite: of augment.NAME
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return {int: int, float: float}.get(hint) if isinstance(hint, type) else None


def in_order(search: Mapping[str, Dimension]) -> list[str]:
    """The keys, each after those that its condition names."""
    return sorted(search, key=lambda key: len(_ancestors(key, search)))


def is_active(dimension: Dimension, values: Values) -> bool:
    """Return True if the condition of a dimension holds.  values: of the active keys before it."""
    return all(parent in values and values[parent] in allowed for parent, allowed in dimension.when.items())


def own_values(member: Member, search: Mapping[str, Dimension]) -> Values:
    """The member's own value of every searched parameter."""
    strengths = {f"{AUGMENT}{name}": strength for name, strength in member.train.augment.items()}
    values = {**vars(member.train), **vars(member), **strengths}
    if member.head is not None:
        tried = member.head.strengths
        strength = tried[0] if len(tried) == 1 else CHOSEN_IN_EACH_FOLD
        values |= {"head.kind": member.head.kind, "head.hidden": member.head.hidden, "head.strength": strength}
    return {key: values.get(key, 0.0) if key.startswith(AUGMENT) else values[key] for key in search}


def with_values(member: Member, values: Values) -> Member:
    """The member with these values of searched parameters."""
    own = {key: value for key, value in values.items() if key in MEMBER_KEYS}
    head = {key.removeprefix("head."): value for key, value in values.items() if key in HEAD_KEYS}
    if head and member.head is not None:
        strength = head.pop("strength", None)
        strengths_tried = member.head.strengths if strength in (None, CHOSEN_IN_EACH_FOLD) else (strength,)
        own["head"] = replace(member.head, **head, strengths=strengths_tried)
    strengths = {key.removeprefix(AUGMENT): value for key, value in values.items() if key.startswith(AUGMENT)}
    of_train = [key for key in values if key not in {*own, *HEAD_KEYS} and not key.startswith(AUGMENT)]
    augment = {**member.train.augment, **strengths}
    return replace(
        member, **own, train=replace(member.train, **{key: values[key] for key in of_train}, augment=augment)
    )


def compiled_key(member: Member) -> str:
    """Text that is equal for two members if and only if one compiled engine can train both."""
    train = {key: value for key, value in vars(member.train).items() if key not in AT_RUN_TIME}
    train |= {key: train[key] > 0 for key in ON_OR_OFF}
    own = {key: value for key, value in vars(member).items() if key not in ("train", "seeds", "tuned_folds")}
    return repr(sorted({**own, **train}.items()))


def grid(search: Mapping[str, Dimension], keys: Sequence[str] | None = None) -> list[Values]:
    """Every combination of the values of all dimensions, those of inactive ones left out; each once."""
    keys = in_order(search) if keys is None else keys
    all_values: list[Sequence[Choice]] = []
    for key in keys:
        dimension, number = search[key], number_type(key) or float
        low, high, step = dimension.low or 0.0, dimension.high or 0.0, dimension.step or 1.0
        steps = range(int((high - low) / step + 1e-9) + 1)
        all_values.append(dimension.choices or [number(low + n * step) for n in steps])
    combinations: dict[str, Values] = {}
    for row in product(*all_values):
        values: Values = {}
        for key, value in zip(keys, row, strict=True):
            if is_active(search[key], values):
                values[key] = value
        combinations[repr(values)] = values
    return list(combinations.values())


def variants(member: Member, search: Mapping[str, Dimension]) -> list[Member]:
    """The member with every combination of those searched choices that cannot be combined freely."""
    related = set().union(*(_ancestors(key, search) for key in CHECKED_TOGETHER if key in search))
    keys = [key for key in in_order(search) if key in related]
    return [with_values(member, values) for values in grid(search, keys)] if keys else []
