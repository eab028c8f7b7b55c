"""Read Kaggle's answers as data in which any field may be missing, null, of another type, or new.

A value of another type counts as missing, so that one unknown field never hides the others.
"""

import math
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime


def text(value: object) -> str:
    """The value of a text field; "" if it is missing, a list or an object."""
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""


def whole(value: object) -> int | None:
    """The value of a field with a whole number of 0 or more, which may be sent as text; None if it is unknown."""
    number = decimal(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None


def decimal(value: object) -> float | None:
    """A finite number, which may be sent as text; None for everything else."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def nested(value: object) -> Mapping[str, object]:
    """The value of a field that holds an object; {} for everything else."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Mapping[str, object]]:
    """The entries of a list, {} in place of one that is no object; [] if it is no list."""
    return [nested(entry) for entry in value] if isinstance(value, list) else []


def utc_time(value: object) -> str:
    """A time as ISO 8601 in UTC, to the second, e.g. "2026-01-31T23:59:59"; another text unchanged."""
    try:
        time = datetime.fromisoformat(text(value))
        return (time.astimezone(UTC) if time.tzinfo else time).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError):  # the latter near the years 1 and 9999
        return text(value)


def is_safe_path(name: str) -> bool:
    """Whether a name is the path of a file below a folder, everywhere: relative, without "..", "\\" and control characters."""
    control = not name.isprintable() and any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in name)
    is_outside = "\\" in name or name[1:2] == ":" or bool({"", ".", ".."} & {*name.split("/")})
    return not control and not is_outside and bool(name.strip())
