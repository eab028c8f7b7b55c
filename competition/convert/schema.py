"""The two common schemas of image Examples.

Kaggle:      id, image, class (from 0)                         test records have no class
TensorFlow:  image/filename, image/encoded, image/class/label (from 1), image/class/text
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from competition.config.errors import UserError

Values = Mapping[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Labelled:
    """id: "" if the record has none.  label: class number from 0, -1 = none.  class_name: "" = not stated."""

    id: str
    label: int
    class_name: str


def image_of(values: Values, where: str) -> bytes:
    """Return the encoded image of a record in either schema."""
    data = _single(values, "image" if "image" in values else "image/encoded", bytes, where)
    if data is None:
        listed = ", ".join(sorted(values)) or "none"
        raise UserError(f"{where}: features {listed} were found, image or image/encoded was expected")
    return bytes(data)


def labelled(values: Values, where: str) -> Labelled:
    """Return id, label and class name of a record in either schema. Raises UserError."""
    if "image" in values:
        label = _single(values, "class", int, where)
        return Labelled(_text(values, "id", where), -1 if label is None else label, "")
    image_of(values, where)
    label = _single(values, "image/class/label", int, where)
    if label is not None and label < 1:
        # ImageNet's scripts reserve 0 for a background class that no image has; a test set may be labelled with -1.
        if label == 0:
            raise UserError(f"{where}: image/class/label is 0; labels of this schema start at 1, so add 1 to each")
        label = None
    name = _text(values, "image/filename", where)
    return Labelled(name, -1 if label is None else label - 1, _text(values, "image/class/text", where))


def _text(values: Values, key: str, where: str) -> str:
    data = _single(values, key, bytes, where)
    try:
        return "" if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: feature {key!r} is not UTF-8 text: {data[:20]!r}") from None


def _single(values: Values, key: str, kind: type, where: str) -> Any:
    """The only value of a feature; None if it is absent or empty."""
    content = values.get(key, [])
    if not content:
        return None
    if len(content) != 1 or not isinstance(content[0], kind):
        raise UserError(
            f"{where}: feature {key!r} has {len(content)} values of type {type(content[0]).__name__}, one {kind.__name__} was expected"
        )
    return content[0]
