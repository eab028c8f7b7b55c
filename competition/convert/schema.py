"""The two common schemas of image Examples.

Kaggle:      id, image, class (from 0)                         test records have no class
TensorFlow:  image/filename, image/encoded, image/class/label (from 1), image/class/text
"""

from dataclasses import dataclass

from competition.config.errors import UserError
from competition.prepare.tfrecord import Values, single_value, text_value


@dataclass(frozen=True, slots=True)
class Labelled:
    """id: "" if the record has none.  label: class number from 0, -1 = none.  class_name: "" = not stated."""

    id: str
    label: int
    class_name: str


def image_of(values: Values, where: str) -> bytes:
    """Return the encoded image of a record in either schema."""
    data = single_value(values, "image" if "image" in values else "image/encoded", bytes, where)
    if data is None:
        listed = ", ".join(sorted(values)) or "none"
        raise UserError(f"{where}: features {listed} were found, image or image/encoded was expected")
    return data


def labelled(values: Values, where: str) -> Labelled:
    """Return id, label and class name of a record in either schema. Raises UserError."""
    if "image" in values:
        label = single_value(values, "class", int, where)
        return Labelled(text_value(values, "id", where), -1 if label is None else label, "")
    image_of(values, where)
    label = single_value(values, "image/class/label", int, where)
    if label is not None and label < 1:
        # ImageNet's scripts reserve 0 for a background class that no image has; a test set may be labelled with -1.
        if label == 0:
            raise UserError(f"{where}: image/class/label is 0; labels of this schema start at 1, so add 1 to each")
        label = None
    name = text_value(values, "image/filename", where)
    return Labelled(name, -1 if label is None else label - 1, text_value(values, "image/class/text", where))
